// Bulk tensor copies. A load completes on its mbarrier. A store belongs to a group of the thread that issued it: it
// first reads its source, then lands, and the thread observes either by waiting for the group.
#include "bulk.h"

#include <cstring>

#include "report.h"

namespace pk::emulated {

unsigned char* swizzled(unsigned char* shared) {
  const auto at = reinterpret_cast<std::uintptr_t>(shared);
  return shared + ((at ^ (at >> 3 & 0x70)) - at);
}

namespace {

// f(address in global memory, address in shared memory) of every 16 bytes of the box's rows inside the tensor;
// g(address in shared memory, bytes) of what lies outside.
template <class F, class G>
void each_piece(const bulk_copy& c, F f, G g) {
  tensor_box map;
  std::memcpy(&map, c.map, sizeof map);
  const int width = int(map.box[0]) * map.element;
  for (int row = 0; row < int(map.box[1]); ++row) {
    for (int at = 0; at < width; at += 16) {
      unsigned char* to = swizzled(c.shared + row * width + at);
      const std::int64_t col = c.col + at / map.element, line = c.row + row;
      const bool inside = line >= 0 && line < std::int64_t(map.dims[1]) && c.plane >= 0 &&
                          c.plane < std::int64_t(map.dims[2]) && col >= 0;
      const std::int64_t left = inside ? (std::int64_t(map.dims[0]) - col) * map.element : 0;
      const int bytes = left <= 0 ? 0 : left < 16 ? int(left) : 16;
      if (bytes > 0)
        f(map.data + c.plane * std::int64_t(map.strides[1]) + line * std::int64_t(map.strides[0]) + col * map.element,
          to, bytes);
      if (bytes < 16) g(to + bytes, 16 - bytes);
    }
  }
}

int bytes_of(const bulk_copy& c) {
  tensor_box map;
  std::memcpy(&map, c.map, sizeof map);
  return int(map.box[0] * map.box[1]) * map.element;
}

std::shared_ptr<bulk_copy> make(const void* map, int col, int row, int plane, std::uint32_t shared, site where) {
  thread& t = *m.running;
  auto c = std::make_shared<bulk_copy>();
  std::memcpy(c->map, map, sizeof c->map);
  tensor_box box;
  std::memcpy(&box, c->map, sizeof box);
  if (box.magic != tensor_box::mark) stop("fault", name_of(t) + ": a bulk copy with something that is no tensor map");
  if (shared % 1024 != 0)
    stop("fault", name_of(t) + ": a swizzled bulk copy needs a shared address that is a multiple of 1024");
  c->thread = t.id, c->where = where, c->col = col, c->row = row, c->plane = plane;
  c->shared = block_of(t).memory + (shared - shared_base);
  return c;
}

void land(bulk_copy& c) {
  if (c.load) {
    each_piece(
        c, [](unsigned char* from, unsigned char* to, int bytes) { std::memcpy(to, from, std::size_t(bytes)); },
        [](unsigned char* to, int bytes) { std::memset(to, 0, std::size_t(bytes)); });
    thread& t = *m.threads[std::size_t(c.thread)];
    mbarrier_loaded(block_of(t), std::uint32_t(c.barrier), bytes_of(c));
    c.read = c.landed = true;
    return;
  }
  std::size_t at = 0;
  tensor_box map;
  std::memcpy(&map, c.map, sizeof map);
  if (!c.read) {
    each_piece(
        c, [&](unsigned char*, unsigned char* from, int bytes) { c.held.insert(c.held.end(), from, from + bytes); },
        [](unsigned char*, int) {});
    c.read = true;
    return;
  }
  each_piece(
      c,
      [&](unsigned char* to, unsigned char*, int bytes) {
        if (c.add)
          add_elements(to, c.held.data() + at, bytes, map.type);
        else
          std::memcpy(to, c.held.data() + at, std::size_t(bytes));
        at += std::size_t(bytes);
      },
      [](unsigned char*, int) {});
  c.landed = true;
}

bool free_of(const thread& t, std::uint32_t groups, bool read_only) {
  for (const auto& c : t.copies)
    if (c->group < t.open_group && c->group + groups < t.open_group && !(read_only ? c->read : c->landed)) return false;
  return true;
}

}  // namespace

void land_one() {
  const std::size_t pick = m.seed == 0 ? 0 : m.random() % m.pending.size();
  const auto c = m.pending[pick];
  land(*c);
  if (c->landed) m.pending.erase(m.pending.begin() + std::ptrdiff_t(pick));
}

void bulk_load(std::uint32_t shared, const void* map, int col, int row, int plane, std::uint32_t bar, site where) {
  thread& t = *m.running;
  const auto c = make(map, col, row, plane, shared, where);
  mbarrier& barrier = find_mbarrier(block_of(t), bar, "a bulk load completes");
  c->load = true, c->barrier = bar;
  manner how;
  how.async = true, how.component = barrier.component, how.count = barrier.first + barrier.phase + 1;
  // The mbarrier's initialisation must be known to the asynchronous side.
  manner complete = how;
  complete.write = complete.strong = true;
  touch(block_of(t).memory + (bar - shared_base), 8, complete, where);
  manner into = how;
  into.write = true;
  each_piece(
      *c,
      [&](unsigned char* from, unsigned char* to, int bytes) {
        touch(from, std::size_t(bytes), how, where);
        touch(to, std::size_t(bytes), into, where);
      },
      [&](unsigned char* to, int bytes) { touch(to, std::size_t(bytes), into, where); });
  m.pending.push_back(c);
  pause();
}

void bulk_store(const void* map, int col, int row, int plane, std::uint32_t shared, bool add, site where) {
  thread& t = *m.running;
  const auto c = make(map, col, row, plane, shared, where);
  if (t.reads_component < 0) t.reads_component = new_component(), t.writes_component = new_component();
  c->add = add, c->group = t.open_group;
  manner from, to;
  from.async = to.async = to.write = true;
  from.component = t.reads_component, to.component = t.writes_component;
  from.count = to.count = t.open_group;
  if (add) to.strong = true, to.wide = scope::gpu;  // PTX: each addition is relaxed at gpu scope
  each_piece(
      *c,
      [&](unsigned char* into, unsigned char* source, int bytes) {
        touch(source, std::size_t(bytes), from, where);
        touch(into, std::size_t(bytes), to, where);
      },
      [](unsigned char*, int) {});
  t.group_moments[t.open_group].issued = t.now;
  t.copies.push_back(c);
  m.pending.push_back(c);
}

void bulk_commit() {
  ++m.running->open_group;
  pause();
}

void bulk_wait(int pending, bool read_only, site where) {
  thread& t = *m.running;
  const auto groups = std::uint32_t(pending);
  t.polled.clear();
  if (!free_of(t, groups, read_only))
    wait_until("its bulk stores", false, [&t, groups, read_only] { return free_of(t, groups, read_only); });
  if (t.open_group <= groups + 1) return;
  const std::uint32_t complete = t.open_group - 1 - groups;
  observe(t, t.reads_component, complete);
  for (std::uint32_t g = complete; g > 0; --g) {
    thread::moments& moment = t.group_moments[g];
    if (moment.landed != 0) break;
    if (moment.read == 0) moment.read = t.now, moment.read_at = where;
    if (!read_only) moment.landed = t.now;
  }
  t.free_group = std::max(t.free_group, complete);
  if (read_only) return;
  observe(t, t.writes_component, complete);
  while (!t.copies.empty() && t.copies.front()->group <= complete) t.copies.pop_front();
}

void check_exit(thread& t) {
  for (const auto& c : t.copies)
    if (c->group > t.free_group) {
      report_exit(t, *c);
      return;
    }
}

}  // namespace pk::emulated
