#include "train/stop_signal.h"

#include <array>
#include <csignal>

namespace phalanx {
namespace {

// What a signal handler may touch: the only process-wide state of the engine.
volatile std::sig_atomic_t stop_signal = 0;
volatile std::sig_atomic_t save_signal = 0;

constexpr std::array kSignals = {SIGTERM, SIGINT, SIGUSR1};
std::array<struct sigaction, kSignals.size()> former_actions;

void on_signal(int signal) {
  if (signal == SIGUSR1) {
    save_signal = 1;
    return;
  }
  stop_signal = signal;
  // The next one of the two is not caught any more.
  std::signal(SIGTERM, SIG_DFL);
  std::signal(SIGINT, SIG_DFL);
}

}  // namespace

StopSignal::StopSignal() {
  stop_signal = 0;
  save_signal = 0;
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], &action, &former_actions[i]);
  }
}

StopSignal::~StopSignal() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], &former_actions[i], nullptr);
  }
}

int StopSignal::stop_requested() const { return stop_signal; }

bool StopSignal::take_save_request() {
  const bool requested = save_signal != 0;
  save_signal = 0;
  return requested;
}

}  // namespace phalanx
