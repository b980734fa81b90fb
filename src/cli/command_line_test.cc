#include "cli/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/strings.h"

namespace ckpt {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

CommandLine parse(const std::string& line) {
  std::vector<std::string> arguments;
  for (auto& word : split(line, ' ')) {
    if (!word.empty()) arguments.push_back(word);
  }
  return parse_command_line(arguments);
}

template <typename Command>
Command parsed(const std::string& line) {
  const CommandLine result = parse(line);
  if (const auto* text = std::get_if<CommandLineText>(&result)) {
    ADD_FAILURE() << line << ": " << text->text;
    return {};
  }
  return std::get<Command>(result);
}

CommandLineText text(const std::string& line) {
  const CommandLine result = parse(line);
  if (const auto* found = std::get_if<CommandLineText>(&result)) return *found;
  ADD_FAILURE() << line << ": was accepted";
  return {};
}

TEST(CommandLine, FieldsExampleProgramsOptionsKeepTheirNames) {
  const auto update = parsed<UpdateCommand>(
      "update --checkpoint-path /c --save-metas-file m --sleep-time 300 --endpoint "
      "http://localhost:19730 --inference-parallel-size 8 --checkpoint-name n --update-method all "
      "--uds /u --custom-dist nccl");
  EXPECT_EQ(update.checkpoint_path, "/c");
  EXPECT_EQ(update.save_metas_file, "m");
  EXPECT_EQ(update.sleep_seconds, 300);
  EXPECT_THAT(update.endpoints, ElementsAre("http://localhost:19730"));
  EXPECT_EQ(update.inference_parallel_size, 8);
  EXPECT_EQ(update.checkpoint_name, "n");
  EXPECT_EQ(update.update_method, "all");
  EXPECT_THAT(update.uds, ElementsAre("/u"));
  EXPECT_THAT(parsed<UpdateCommand>("update --load-metas-file m").load_metas_files,
              ElementsAre("m"));
  EXPECT_THAT(
      parsed<UpdateCommand>("update --load-metas-file m,n --load-metas-file o").load_metas_files,
      ElementsAre("m", "n", "o"));
}

TEST(CommandLine, EndpointsAreRepeatedOrSeparatedByCommas) {
  EXPECT_THAT(parsed<UpdateCommand>("update --endpoint a:1,b:2 --endpoint c:3").endpoints,
              ElementsAre("a:1", "b:2", "c:3"));
  EXPECT_THAT(parsed<UpdateCommand>("update --uds /a,/b").uds, ElementsAre("/a", "/b"));
}

TEST(CommandLine, SizesHaveUnits) {
  const auto update = parsed<UpdateCommand>(
      "update --ring-size 512MiB --bucket-size 1GB --chunk-size 65536 --no-verify");
  EXPECT_EQ(update.ring_bytes, 512u << 20);
  EXPECT_EQ(update.bucket_bytes, 1'000'000'000u);
  EXPECT_EQ(update.chunk_bytes, 65536u);
  EXPECT_FALSE(update.verify);
  EXPECT_THAT(text("update --ring-size 1").text, HasSubstr("unit"));
}

TEST(CommandLine, TheLastOneOfAnOptionCounts) {
  // The launcher puts what a rank needs behind the user's options.
  const auto update = parsed<UpdateCommand>(
      "update --nproc 4 --job a --checkpoint-path /c --nproc=0 --external-hub "
      "--rendezvous=127.0.0.1:5 --job=b");
  EXPECT_EQ(update.nproc, 0);
  EXPECT_TRUE(update.external_hub);
  EXPECT_EQ(update.rendezvous, "127.0.0.1:5");
  EXPECT_EQ(update.job, "b");
}

TEST(CommandLine, OtherSubcommands) {
  const auto receive = parsed<ReceiveCommand>(
      "receive --workers 2 --listen 127.0.0.1:0 --output o --output-all --expect e --exit-after 3");
  EXPECT_EQ(receive.workers, 2);
  EXPECT_TRUE(receive.output_all);
  EXPECT_EQ(receive.exit_after, 3);
  const auto make = parsed<MakeCheckpointCommand>(
      "make-checkpoint --like qwen3-0.6b /d --layers 2 --shrink 4 --seed 7 --shard-size 10MiB");
  EXPECT_EQ(make.folder, "/d");
  EXPECT_EQ(make.model.layers, 2);
  EXPECT_FALSE(make.model.experts.has_value());
  EXPECT_EQ(make.content.seed, 7u);
  EXPECT_EQ(make.content.shard_bytes, 10u << 20);
  EXPECT_THAT(parsed<InspectCommand>("inspect a b --json").paths, ElementsAre("a", "b"));
  EXPECT_TRUE(parsed<InspectCommand>("inspect --network").network);
  EXPECT_EQ(parsed<HubCommand>("hub --listen [::]:0 --world-size 4").world_size, 4);
}

TEST(CommandLine, HelpAndVersionAreNoErrors) {
  EXPECT_THAT(text("--version").text, HasSubstr("checkpoint-engine "));
  for (const char* line : {"--help", "update --help", "receive --help", "make-checkpoint --help",
                           "inspect --help", "hub --help"}) {
    const auto help = text(line);
    EXPECT_FALSE(help.refused) << line;
    EXPECT_THAT(help.text, HasSubstr("Usage")) << line;
  }
}

TEST(CommandLine, UsageErrorsAreOneLine) {
  for (const char* line : {"",
                           "unknown",
                           "update extra",
                           "update --unknown",
                           "update --nproc x",
                           "update --nproc -1",
                           "update --update-method slow",
                           "update --engine torch",
                           "update --timeout 0",
                           "update --chunk-size 3XB",
                           "update --device tpu",
                           "update --split rows",
                           "receive --workers 0",
                           "receive --uds /u --listen a:1",
                           "receive --output-all",
                           "receive --exit-after 0",
                           "make-checkpoint /d",
                           "make-checkpoint --like gpt-9 /d",
                           "make-checkpoint --like kimi-k2",
                           "inspect",
                           "hub",
                           "hub --listen a:1 --world-size 0"}) {
    const auto error = text(line);
    EXPECT_TRUE(error.refused) << line;
    EXPECT_EQ(error.text.find('\n'), error.text.size() - 1) << line << ": " << error.text;
  }
}

}  // namespace
}  // namespace ckpt
