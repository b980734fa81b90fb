// Who decides that an update needs a further pass: the coordinator (the lowest recipient). Pure
// logic; time is an argument.
//
// A worker that connects anew before its engine has answered wants the whole data again (an engine
// with a draft model does so). Its rank reports it. When all ranks of an instance have reported, or
// a second after the first of them, the next pass begins with exactly the ranks that have. The
// update ends when every engine call has returned and nobody waits.
#pragma once

#include <chrono>
#include <optional>
#include <set>
#include <variant>
#include <vector>

namespace ckpt {

class PassAgreement {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kPatience{1000};

  struct NextPass {
    std::vector<int> recipients;  ///< ascending
  };
  struct End {};
  using Decision = std::variant<NextPass, End>;

  /// `instances`: the recipients, by instance.
  explicit PassAgreement(std::vector<std::vector<int>> instances);

  /// Repeated reports are fine.
  void call_returned(int rank);
  void reconnected(int rank, Clock::time_point now);
  /// The decision, once; after NextPass the reports of those ranks are forgotten and the next
  /// decision is about the pass after.
  std::optional<Decision> decide(Clock::time_point now);
  /// When decide() may answer differently without a further report.
  std::optional<Clock::time_point> wake_at() const;

 private:
  std::vector<std::vector<int>> instances_;
  std::set<int> not_returned_;
  std::set<int> waiting_;
  std::optional<Clock::time_point> first_report_;
};

}  // namespace ckpt
