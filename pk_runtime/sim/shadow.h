// Shadow memory: who wrote each piece of memory last and who has read it since. Global memory has a cell for every 16
// bytes: rows, column parts, tiles and slabs begin at multiples of 16 bytes, and what follows a ragged end inside a
// cell belongs to nobody else. A shared tile is one cell, since tiles are only used whole. Cells hold the number of a
// state; most neighbours share theirs, so that an access costs a comparison and a fill, not a check, for each cell.
#pragma once

#include <deque>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <pk/sim/engine.h>

#include "clock.h"
#include "source.h"

namespace pk::sim {

enum class action : std::uint8_t { read, write, add };

// How an access is made: what the report calls it.
enum class means : std::uint8_t { ring_load, tile_store, tile_add, slab_load, slab_store, registers, wgmma, host };

// What there is to tell of an access. Of a shared tile `tensor` is -1 and owner the rank.
struct access {
  std::uint32_t worker = 0;  // see order.h
  int launch = 0;
  site at = 0;
  std::uint32_t when = 0;  // counts up over the run
  action does = action::read;
  means by = means::host;
  std::int16_t tensor = -1, owner = 0;  // tensor as in tensor_ref::id
  std::int16_t ring = -1, slot = -1;    // of a shared tile that is in a ring
  int plane = 0, row = 0, col = 0;      // in tiles of rows x cols
  int rows = 0, cols = 0;
};

// An access that is being made.
struct attempt {
  epoch when;
  const access* what = nullptr;
  const views* after = nullptr;  // what it comes after
  bool asynchronous = false;
};

class shadow {
 public:
  struct object {
    std::vector<std::uint32_t> cells;
  };

  // Makes an access to one row after the other: `count` rows of `bytes` bytes, `stride` bytes apart.
  void rows(object&, const attempt&, std::size_t first, std::size_t bytes, std::size_t stride, int count);

  // Makes an access to a single cell.
  void cell(std::uint32_t& cell, const attempt&);

 private:
  struct state {
    epoch write, replaced;      // the last plain write and the one before
    std::vector<epoch> adds;    // since then, those not ordered among each other
    std::vector<epoch> reads;   // since then, likewise
  };
  using step = std::pair<std::uint32_t, std::uint32_t>;

  void range(object&, const attempt&, std::size_t first, std::size_t last);
  std::uint32_t next(std::uint32_t from, const attempt&, std::size_t byte);
  state after(const state&, const attempt&, std::size_t byte);

  std::deque<state> states_{1};
  std::vector<step> steps_;  // of the access that is being made
};

}  // namespace pk::sim
