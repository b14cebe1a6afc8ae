// Unlocked: the interpreter lock is let go of while C++ works. Knows nothing of the work.
#pragma once

#include <pybind11/pybind11.h>
#include <unistd.h>

namespace ion::bindings {

// pybind11's gil_scoped_release ends the process when the interpreter finalizes meanwhile: up to Python 3.13
// the lock is then refused by pthread_exit, which unwinds the stack and finds a destructor that may not throw
// ("terminate called without an active exception"). A thread that comes back too late stays here instead,
// until the process ends, as threads do from Python 3.14 on.
class Unlocked {
 public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

  ~Unlocked() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {  // the unwinding of pthread_exit; nothing else is thrown by C
      for (;;) pause();
    }
  }

 private:
  PyThreadState* state_;
};

}  // namespace ion::bindings
