#include "cli/report_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "base/strings.h"

namespace ckpt {
namespace {

using nlohmann::ordered_json;

double rate(std::uint64_t bytes, double seconds) {
  return seconds > 0 ? static_cast<double>(bytes) / seconds / 1e9 : 0;
}

ordered_json stages_json(const std::vector<StageReport>& stages) {
  ordered_json all = ordered_json::array();
  for (const StageReport& stage : stages) {
    all.push_back({{"name", stage.name},
                   {"seconds", stage.seconds},
                   {"bytes", stage.bytes},
                   {"gb_per_s", rate(stage.bytes, stage.seconds)}});
  }
  return all;
}

std::vector<StageReport> parse_stages(const ordered_json& all) {
  std::vector<StageReport> stages;
  for (const auto& stage : all) {
    stages.push_back({stage.at("name"), stage.at("seconds"), stage.at("bytes")});
  }
  return stages;
}

ordered_json answers_json(const std::vector<EngineAnswerReport>& answers) {
  ordered_json all = ordered_json::array();
  for (const EngineAnswerReport& answer : answers) {
    all.push_back({{"engine", answer.engine},
                   {"path", answer.path},
                   {"status", answer.status},
                   {"seconds", answer.seconds},
                   {"body", answer.body}});
  }
  return all;
}

std::vector<EngineAnswerReport> parse_answers(const ordered_json& all) {
  std::vector<EngineAnswerReport> answers;
  for (const auto& answer : all) {
    answers.push_back({answer.at("engine"), answer.at("path"), answer.at("status"),
                       answer.at("seconds"), answer.at("body")});
  }
  return answers;
}

ordered_json update_json(const UpdateReport& report) {
  return {{"epoch", report.epoch},
          {"checkpoint", report.checkpoint_name},
          {"total_tensors", report.total_tensors},
          {"total_bytes", report.total_bytes},
          {"update_seconds", report.update_seconds},
          {"commit_seconds", report.commit_seconds},
          {"first_bucket_seconds", report.first_bucket_seconds},
          {"filled_bytes", report.filled_bytes},
          {"received_bytes", report.received_bytes},
          {"wire", report.wire},
          {"loaded_tensors", report.loaded_tensors},
          {"loaded_bytes", report.loaded_bytes},
          {"verified_tensors", report.verified_tensors},
          {"buckets", report.buckets},
          {"passes", report.passes},
          {"ring_bytes", report.ring_bytes},
          {"staging_bytes", report.staging_bytes},
          {"communicator_bytes", report.communicator_bytes},
          {"context_bytes", report.context_bytes},
          {"allocated_bytes", report.allocated_bytes},
          {"kept_bytes", report.kept_bytes},
          {"streams_made", report.streams_made},
          {"stages", stages_json(report.stages)}};
}

UpdateReport parse_update(const ordered_json& json, int rank) {
  UpdateReport report;
  report.rank = rank;
  report.epoch = json.at("epoch");
  report.checkpoint_name = json.at("checkpoint");
  report.total_tensors = json.at("total_tensors");
  report.total_bytes = json.at("total_bytes");
  report.update_seconds = json.at("update_seconds");
  report.commit_seconds = json.at("commit_seconds");
  report.first_bucket_seconds = json.at("first_bucket_seconds");
  report.filled_bytes = json.at("filled_bytes");
  report.received_bytes = json.at("received_bytes");
  report.wire = json.at("wire");
  report.loaded_tensors = json.at("loaded_tensors");
  report.loaded_bytes = json.at("loaded_bytes");
  report.verified_tensors = json.at("verified_tensors");
  report.buckets = json.at("buckets");
  report.passes = json.at("passes");
  report.ring_bytes = json.at("ring_bytes");
  report.staging_bytes = json.at("staging_bytes");
  report.communicator_bytes = json.at("communicator_bytes");
  report.context_bytes = json.at("context_bytes");
  report.allocated_bytes = json.at("allocated_bytes");
  report.kept_bytes = json.at("kept_bytes");
  report.streams_made = json.at("streams_made");
  report.stages = parse_stages(json.at("stages"));
  return report;
}

ordered_json updates_json(std::span<const UpdateReport> reports) {
  ordered_json updates = ordered_json::array();
  for (const UpdateReport& update : reports) updates.push_back(update_json(update));
  return updates;
}

/// The last update's members beside the rank's own.
ordered_json rank_json(const RankReport& report) {
  ordered_json json = {
      {"rank", report.rank}, {"host", report.host}, {"setup", stages_json(report.setup)}};
  if (!report.engine_answers.empty()) json["engine_answers"] = answers_json(report.engine_answers);
  if (report.updates.empty()) return json;
  json.update(update_json(report.updates.back()));
  if (report.updates.size() > 1) {
    json["earlier_updates"] =
        updates_json(std::span(report.updates).first(report.updates.size() - 1));
  }
  return json;
}

std::string dump(const ordered_json& json, int indent) {
  return json.dump(indent, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace

std::string encode_rank_report(const RankReport& report) {
  return dump({{"rank", report.rank},
               {"host", report.host},
               {"setup", stages_json(report.setup)},
               {"engine_answers", answers_json(report.engine_answers)},
               {"updates", updates_json(report.updates)}},
              -1);
}

Result<RankReport> decode_rank_report(std::string_view text) try {
  const auto json = ordered_json::parse(text);
  RankReport report;
  report.rank = json.at("rank");
  report.host = json.at("host");
  report.setup = parse_stages(json.at("setup"));
  report.engine_answers = parse_answers(json.at("engine_answers"));
  for (const auto& update : json.at("updates")) {
    report.updates.push_back(parse_update(update, report.rank));
  }
  return report;
} catch (const ordered_json::exception& error) {
  return protocol_error(concat("a rank's report is malformed: ", error.what()));
}

std::string failed_report_json(const Status& error) {
  ordered_json report = {
      {"version", 1},
      {"error", {{"code", status_code_name(error.code())}, {"message", error.message()}}}};
  if (error.rank()) report["error"]["rank"] = *error.rank();
  return dump(report, 2) + "\n";
}

std::string job_report_json(const std::vector<RankReport>& ranks) {
  ordered_json all = ordered_json::array();
  ordered_json report = {{"version", 1}, {"world_size", ranks.size()}};
  double seconds = 0;
  for (const RankReport& rank : ranks) {
    all.push_back(rank_json(rank));
    if (!rank.updates.empty()) seconds = std::max(seconds, rank.updates.back().update_seconds);
  }
  if (!ranks.empty() && !ranks.front().updates.empty()) {
    const UpdateReport& last = ranks.front().updates.back();
    std::uint64_t loaded = 0;
    for (const RankReport& rank : ranks) {
      if (!rank.updates.empty()) loaded += rank.updates.back().loaded_bytes;
    }
    report["checkpoint"] = last.checkpoint_name;
    report["total_tensors"] = last.total_tensors;
    report["total_bytes"] = last.total_bytes;
    report["loaded_bytes"] = loaded;
    report["seconds"] = seconds;
    report["gb_per_s"] = rate(loaded, seconds);
  }
  report["ranks"] = std::move(all);
  return dump(report, 2) + "\n";
}

}  // namespace ckpt
