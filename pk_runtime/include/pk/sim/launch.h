// PK_KERNEL(K): makes the kernel K known to the engine.
#pragma once

#include <new>

#include <pk/common/roles.h>
#include <pk/sim/host.h>
#include <pk/sim/ring.h>

namespace pk::sim {

using namespace parts;

// group<0> lives beside the issuers of a compute SM.
template <class K, class A, class S>
constexpr bool fits(void (*)(group<0>, const A&, S&)) { return comm_sms_of<K>() == 0; }
template <class K, class W, class A, class S>
constexpr bool fits(void (*)(W, const A&, S&)) { return true; }

// Calls a role with the worker type that its first parameter names.
template <class W, class A, class S>
void call(void (*role)(W, const A&, S&), fiber& f, const void* args, void* shared) {
  W self;
  self.f = &f;
  role(self, *static_cast<const A*>(args), *static_cast<S*>(shared));
}

template <class K>
void run(role which, fiber& f, const void* args, void* shared) {
  if (which == role::loader) {
    if constexpr (has_loader<K>) call(&K::loader, f, args, shared);
  } else if (which == role::consumer) {
    if constexpr (has_consumer<K>) call(&K::consumer, f, args, shared);
  } else if (which == role::storer) {
    if constexpr (has_storer<K>) call(&K::storer, f, args, shared);
  } else {
    if constexpr (has_communicator<K>) call(&K::communicator, f, args, shared);
  }
}

template <class K>
constexpr program describe(const char* name) {
  using shared = typename shared_of<K>::type;
  using comm_shared = typename comm_shared_of<K>::type;
  static_assert(has_loader<K> || has_consumer<K> || has_storer<K> || has_communicator<K>,
                "a kernel needs at least one role: loader, consumer, storer or communicator");
  static_assert(has_communicator<K> || comm_sms_of<K>() == 0, "comm_sms > 0 needs a communicator role");
  if constexpr (has_communicator<K>)
    static_assert(fits<K>(&K::communicator), "group<0> is a communicator inside compute SMs: comm_sms = 0");
  return {name, sizeof(typename K::args), sizeof(shared), sizeof(comm_shared), comm_sms_of<K>(),
          {has_loader<K>, has_consumer<K>, has_storer<K>, has_communicator<K>},
          [](host_state& state, void* args) {
            host h(state);
            K::setup(h, *new (args) typename K::args());
          },
          [](void* at) { new (at) shared; },
          [](void* at) { new (at) comm_shared; },
          &run<K>};
}

}  // namespace pk::sim

#define PK_KERNEL(K) extern "C" const pk::sim::program pk_program = pk::sim::describe<K>(#K);
