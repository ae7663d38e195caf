// What the timing mode takes from the hardware sheet: microseconds, and bytes or operations per microsecond.
#pragma once

#include "world.h"

namespace pk::sim {

struct costs {
  explicit costs(const request& ask)
      : flops(ask.parameter("tensor_flops_per_us") / ask.parameter("sms")),
        elements(ask.parameter("vector_flops_per_us") / 2 / ask.parameter("sms")),  // a multiply-add is two
        shared(ask.parameter("sm_shared_bytes_per_us")), sm_memory(ask.parameter("sm_memory_bytes_per_us")),
        hbm(ask.parameter("hbm_bytes_per_us")), l2(ask.parameter("l2_bytes_per_us")),
        hbm_latency(ask.parameter("hbm_latency_us")), l2_latency(ask.parameter("l2_latency_us")),
        tma_issue(ask.parameter("tma_issue_us")), sm_link(ask.parameter("sm_link_bytes_per_us")),
        sm_link_load(ask.parameter("sm_link_load_bytes_per_us")), out(ask.parameter("link_out_bytes_per_us")),
        in(ask.parameter("link_in_bytes_per_us")), store(ask.parameter("link_store_bytes_per_us")),
        load(ask.parameter("link_load_bytes_per_us")), reduce(ask.parameter("link_reduce_bytes_per_us")),
        link_latency(ask.parameter("link_latency_us")), peer_latency(ask.parameter("peer_latency_us")),
        flag_latency(ask.parameter("flag_latency_us")), local_flag_latency(ask.parameter("local_flag_latency_us")),
        release(ask.parameter("release_us")), acquire(ask.parameter("acquire_us")),
        poll(ask.parameter("poll_us")), slab_latency(ask.parameter("slab_latency_us")),
        tma_latency(ask.parameter("tma_latency_us")) {}

  double flops, elements;                              // of one SM
  double shared, sm_memory, hbm, l2;                   // rates
  double hbm_latency, l2_latency, tma_issue;
  double sm_link, sm_link_load;                        // one SM to a peer, and from one
  double out, in, store, load, reduce;                 // a rank's port; by what drives it
  double link_latency, peer_latency;                   // one way; there and back
  double flag_latency, local_flag_latency, release, acquire, poll, slab_latency, tma_latency;
};

}  // namespace pk::sim
