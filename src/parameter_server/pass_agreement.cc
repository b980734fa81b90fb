#include "parameter_server/pass_agreement.h"

#include <algorithm>

namespace ckpt {

PassAgreement::PassAgreement(std::vector<std::vector<int>> instances)
    : instances_(std::move(instances)) {
  for (const auto& instance : instances_) not_returned_.insert(instance.begin(), instance.end());
}

void PassAgreement::call_returned(int rank) { not_returned_.erase(rank); }

void PassAgreement::reconnected(int rank, Clock::time_point now) {
  waiting_.insert(rank);
  if (!first_report_) first_report_ = now;
}

std::optional<PassAgreement::Decision> PassAgreement::decide(Clock::time_point now) {
  if (waiting_.empty()) {
    if (not_returned_.empty()) return End{};
    return std::nullopt;
  }
  // Whole instances only: a half-reported one waits, until patience ends.
  const bool whole =
      std::all_of(instances_.begin(), instances_.end(), [&](const std::vector<int>& instance) {
        const auto reported = std::count_if(instance.begin(), instance.end(),
                                            [&](int r) { return waiting_.contains(r); });
        return reported == 0 || reported == static_cast<std::ptrdiff_t>(instance.size());
      });
  if (!whole && now < *first_report_ + kPatience) return std::nullopt;
  NextPass next{{waiting_.begin(), waiting_.end()}};
  waiting_.clear();
  first_report_.reset();
  return next;
}

std::optional<PassAgreement::Clock::time_point> PassAgreement::wake_at() const {
  if (!first_report_) return std::nullopt;
  return *first_report_ + kPatience;
}

}  // namespace ckpt
