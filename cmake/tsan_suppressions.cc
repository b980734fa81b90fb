// Linked into every test under the thread sanitizer. A library that was built without the sanitizer
// orders its threads in ways it cannot see: races with a frame of such a library in either stack
// say nothing. UCX unlocks, at the end of the process, a lock that it has made by hand.
extern "C" const char* __tsan_default_suppressions();
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_suppressions() {
  return "race:libzmq.so\n"
         "mutex:_dl_call_fini\n";
}
