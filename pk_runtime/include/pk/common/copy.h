// Moving tiles from one place to others through shared memory, with several loads in flight.
#pragma once

namespace pk {

// Shared memory of a moving group: `Depth` tiles in flight.
template <class Tile, int Depth, int G = 2>
struct mover {
  using ring = load_ring<Tile, Depth, G>;
  ring tiles_in_flight;

  // What a role holds while it uses the mover: open it once, before the task loop.
  struct session {
    typename ring::producer_cursor loads;
    typename ring::consumer_cursor tiles;

    // For i in [0, n): source(loads, tile, i) issues one loads.load(tile, ...); sink(tile, i) the stores.
    template <class Source, class Sink>
    PK_DEVICE void move(int n, Source source, Sink sink) {
      for (int i = 0, issued = 0; i < n; ++i) {
        for (; issued < min(n, i + Depth); ++issued) {
          source(loads, loads.acquire(), issued);
          loads.commit();
        }
        sink(tiles.wait(), i);
        tiles.release();
      }
    }
  };

  PK_DEVICE session open(group<G> self) {
    return {tiles_in_flight.producer(self), tiles_in_flight.consumer(self)};
  }
};

}  // namespace pk
