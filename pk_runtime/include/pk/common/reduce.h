// Reductions over peers or planes: the owner pulls n tiles in a fixed order and adds them in fp32, so the
// result has one rounding and does not depend on arrival order. This is the unicast form of the in-switch
// reduce and all_reduce of machines with NVLink multicast.
#pragma once

namespace pk {

// Shared memory of a reducing group: `Depth` tiles in flight and one result.
template <class Tile, int Depth, int G = 2>
struct reducer {
  using ring = load_ring<Tile, Depth, G>;
  ring in;
  Tile result;

  // What a role holds while it uses the reducer: open it once, before the task loop.
  struct session {
    group<G> self;
    typename ring::producer_cursor loads;
    typename ring::consumer_cursor tiles;
    Tile& result;

    // Returns result = sum of n tiles in order; source(loads, tile, i) issues one loads.load(tile, ...).
    template <class Source>
    PK_DEVICE Tile& sum(int n, Source source) {
      reg_tile<float, Tile::rows, Tile::cols, G> total;
      zero(total);
      for (int i = 0, issued = 0; i < n; ++i) {
        for (; issued < min(n, i + Depth); ++issued) {
          source(loads, loads.acquire(), issued);
          loads.commit();
        }
        accumulate(self, total, tiles.wait());
        tiles.release();
      }
      drain_reads(self);  // the previous result may still be leaving
      store(self, result, total);
      return result;
    }
  };

  PK_DEVICE session open(group<G> self) { return {self, in.producer(self), in.consumer(self), result}; }
};

// reduce: dst[at] = sum over ranks of src[r][at]; called by a group of the rank that owns dst.
template <class Session, class T>
PK_DEVICE void reduce(Session& s, const layout<T>& dst, coord at, const parallel_layout<T>& src) {
  auto& total = s.sum(s.self.world(), [&](auto& loads, auto& t, int r) { loads.load(t, src[r], at); });
  store_async(s.self, dst, at, total);
}

// all_reduce: as reduce, and the sum goes to every rank's dst. Destinations are staggered by rank.
template <class Session, class T>
PK_DEVICE void all_reduce(Session& s, const parallel_layout<T>& dst, coord at,
                          const parallel_layout<T>& src) {
  auto& total = s.sum(s.self.world(), [&](auto& loads, auto& t, int r) { loads.load(t, src[r], at); });
  for (int i = 1; i <= s.self.world(); ++i)
    store_async(s.self, dst[(s.self.rank() + i) % s.self.world()], at, total);
}

}  // namespace pk
