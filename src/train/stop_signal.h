// SIGTERM and SIGINT ask a run to save at the next step boundary and end; SIGUSR1 asks it to save and go on. A second SIGTERM
// or SIGINT ends the process at once, which is harmless: checkpoints appear whole or not at all.
#pragma once

namespace phalanx {

// Installs the handlers while it lives and puts the former ones back. One at a time in a process.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  int stop_requested() const;  // the signal's number, or 0
  bool take_save_request();    // true once per SIGUSR1
};

}  // namespace phalanx
