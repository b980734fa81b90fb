#include "cli/interrupt.h"

#include <poll.h>

#include <cstring>

#include "base/deadline.h"
#include "base/strings.h"

namespace ckpt {
namespace {

/// For the other ranks to hear why.
constexpr std::chrono::seconds kPatience{5};

}  // namespace

Interrupt::Interrupt() : thread_([this] { watch(); }) {}

Interrupt::~Interrupt() {
  done_.set();
  thread_.join();
}

void Interrupt::watch() {
  int number = 0;
  for (Deadline limit = Deadline::after_seconds(1e9);;) {
    pollfd waits[] = {{signals_.fd(), POLLIN, 0}, {done_.fd(), POLLIN, 0}};
    ::poll(waits, 2, limit.poll_ms());
    if (waits[1].revents != 0) return;
    const auto signal = signals_.take();
    if (number != 0 && (signal || limit.expired())) die_by_signal(number);
    if (!signal) continue;
    number = signal->number;
    if (!updating_) die_by_signal(number);
    limit = Deadline::after(kPatience);
    signal_->raise(aborted(concat("interrupted by the user (", ::strsignal(number), ")")));
  }
}

}  // namespace ckpt
