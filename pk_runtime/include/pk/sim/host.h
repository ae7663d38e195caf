// The host side of a launch: binds a kernel's arguments to the problem's tensors by name.
#pragma once

#include <pk/sim/mailbox.h>
#include <pk/sim/signal.h>

namespace pk {

class host {
 public:
  explicit host(sim::host_state& state) : state_(state) {}
  int rank() const { return sim::host_rank(state_); }
  int world() const { return sim::host_world(state_); }

  // Size of dimension i of the problem's tensor, counted from 0.
  int dim(const char* name, int i) const { return sim::dimension(state_, name, i); }

  // Binds this rank's tensor. `planes` splits its rows into that many equal planes.
  template <class T> void input(const char* name, layout<T>& l, int planes = 0) { one(name, l, false, {planes}); }
  template <class T> void output(const char* name, layout<T>& l, int planes = 0) { one(name, l, true, {planes}); }
  template <class T> void input(const char* name, layout<T>& l, view v) { one(name, l, false, v); }
  template <class T> void output(const char* name, layout<T>& l, view v) { one(name, l, true, v); }

  // Binds the tensor of every rank: peers read the input, peers write the output. The launch then starts
  // and ends with a barrier over all ranks, because the memory is the caller's.
  template <class T> void input(const char* name, parallel_layout<T>& l, int planes = 0) { all(name, l, false, {planes}); }
  template <class T> void output(const char* name, parallel_layout<T>& l, int planes = 0) { all(name, l, true, {planes}); }
  template <class T> void input(const char* name, parallel_layout<T>& l, view v) { all(name, l, false, v); }
  template <class T> void output(const char* name, parallel_layout<T>& l, view v) { all(name, l, true, v); }

  // Binds this rank's tensor in column parts: l[p] is part p of v.parts.
  template <class T>
  void input_parts(const char* name, parallel_layout<T>& l, view v) {
    v.part = 0;
    do set(l.peers[v.part], sim::bind_tensor(state_, name, rank(), false, false, v, sim::dtype_of<T>));
    while (++v.part < v.parts);
    shape(l);
  }

  // Symmetric memory that lives as long as the kernel object, two copies used by turns.
  template <class T>
  void scratch(const char* name, parallel_layout<T>& l, int planes, int rows, int cols) {
    for (int r = 0; r < world(); ++r)
      set(l.peers[r], sim::bind_scratch(state_, name, r, planes, rows, cols, sim::dtype_of<T>));
    shape(l);
  }

  // `slots` counters per rank. A counter that is signalled at all gets exactly `per_launch` signals a launch.
  void signals(const char* name, pk::signals& s, int slots, int per_launch) {
    s.ref = sim::bind_signals(state_, name, slots, per_launch, false);
  }
  void barrier(const char* name, barrier_state& b) { b.ref = sim::bind_signals(state_, name, 1, 0, true); }

  // A box on every rank with `slots` slabs from every source.
  template <class Slab>
  void mailbox(const char* name, pk::mailbox<Slab>& m, int slots) {
    m.ref = sim::bind_mailbox(state_, name, slots, Slab::bytes);
  }

  // Refuses the launch with `message` unless `holds`.
  void require(bool holds, const char* message) { sim::require(state_, holds, message); }

 private:
  template <class T>
  static void set(layout<T>& l, const sim::tensor_ref& ref) {
    l.planes = ref.planes, l.rows = ref.rows, l.cols = ref.cols, l.ref = ref;
  }
  template <class T>
  void shape(parallel_layout<T>& l) {
    l.planes = l.peers[0].planes, l.rows = l.peers[0].rows, l.cols = l.peers[0].cols;
  }
  template <class T>
  void one(const char* name, layout<T>& l, bool output, const view& v) {
    set(l, sim::bind_tensor(state_, name, rank(), output, false, v, sim::dtype_of<T>));
  }
  template <class T>
  void all(const char* name, parallel_layout<T>& l, bool output, const view& v) {
    for (int r = 0; r < world(); ++r)
      set(l.peers[r], sim::bind_tensor(state_, name, r, output, true, v, sim::dtype_of<T>));
    shape(l);
  }
  sim::host_state& state_;
};

}  // namespace pk
