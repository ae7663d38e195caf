// The simulator's program: reads request.txt in the working directory, runs the kernel it is linked with,
// writes report.json and, in functional mode, one file per output.
#include <sys/time.h>

#include <csignal>
#include <cstdlib>

#include "explore.h"

namespace pk::sim {

namespace {

void on_alarm(int) {
  const fiber* f = w.running;
  report_timeout(f == nullptr
                     ? printf_string("the run took longer than %.1f s", w.ask.wall_seconds)
                     : printf_string("%s ran for %.1f s without reaching an operation that waits or finishes: an endless loop?",
                                     describe(*f).c_str(), w.ask.wall_seconds));
}

void on_fault(int number, siginfo_t* info, void*) {
  const char* name = number == SIGSEGV ? "invalid memory access" : number == SIGFPE ? "division by zero"
                     : number == SIGBUS ? "bus error" : number == SIGILL ? "illegal instruction" : "abort";
  const fiber* f = w.running;
  report_fault(f, "signal", printf_string("%s%s in %s (address %p)", name, number == SIGSEGV ? " or stack overflow" : "",
                                          f == nullptr ? "setup or outside any role" : describe(*f).c_str(), info->si_addr));
}

void install_handlers() {
  static char stack[64 << 10];
  stack_t alternate{};
  alternate.ss_sp = stack;
  alternate.ss_size = sizeof stack;
  sigaltstack(&alternate, nullptr);
  struct sigaction action {};
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  action.sa_sigaction = on_fault;
  for (int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) sigaction(number, &action, nullptr);
  struct sigaction alarm {};
  alarm.sa_flags = SA_ONSTACK;
  alarm.sa_handler = on_alarm;
  sigaction(SIGALRM, &alarm, nullptr);
}

void set_alarm(double seconds) {
  itimerval timer{};
  timer.it_value.tv_sec = time_t(seconds);
  timer.it_value.tv_usec = suseconds_t((seconds - double(time_t(seconds))) * 1e6);
  setitimer(ITIMER_REAL, &timer, nullptr);
}

}  // namespace

void run_functional(double wall) {
  set_alarm(wall);
  w.m = make_functional();
  advance_launches();
  w.m->run();
  std::abort();  // a run ends by its report
}

}  // namespace pk::sim

int main() {
  using namespace pk::sim;
  install_handlers();
  w.ask = read_request("request.txt");
  w.ranks.resize(std::size_t(w.ask.world));
  declare_tensors();
  if (w.ask.explore) explore();
  if (!w.ask.timing) run_functional(w.ask.wall_seconds);
  set_alarm(w.ask.wall_seconds);
  w.m = make_timing();
  advance_launches();
  w.m->run();
}
