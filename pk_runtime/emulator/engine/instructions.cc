// What each PTX instruction does. Opcodes are PTX's; modifiers were read by program.cc.
#include <cmath>
#include <cstring>

#include "bulk.h"
#include "memory.h"
#include "program.h"

namespace pk::emulated {

std::uint64_t execution::get(const argument& a) const {
  if (a.kind == argument::number) return a.value;
  if (a.kind == argument::name) return names[a.value];
  if (a.kind != argument::operand) return 0;
  const operand& o = operands.begin()[a.value];
  if (o.at == nullptr) return o.value;
  std::uint64_t value = 0;
  std::memcpy(&value, o.at, std::size_t(o.bytes));
  return value;
}

void execution::set(const argument& a, std::uint64_t value) const {
  if (a.kind == argument::name) names[a.value] = value;
  if (a.kind != argument::operand) return;
  const operand& o = operands.begin()[a.value];
  std::memcpy(o.at, &value, std::size_t(o.bytes));
}

namespace {

using act = void (*)(const instruction&, const execution&);

constexpr std::size_t polled_at_most = 256;  // words that one round of a waiting loop looks at

float float_of(std::uint64_t bits) { return std::bit_cast<float>(std::uint32_t(bits)); }

unsigned char* address(const instruction& i, std::uint64_t at) {
  if (!i.shared) return reinterpret_cast<unsigned char*>(at);
  return block_of(*m.running).memory + (std::uint32_t(at) - shared_base);
}

manner manner_of(const instruction& i, bool write) {
  manner how;
  how.write = write, how.strong = i.strong, how.wide = i.wide;
  return how;
}

// --- loads, stores, atomics -----------------------------------------------------------------------------

// A load that finds the same again and again waits until that changes: it is a loop.
void poll(const unsigned char* at, int bytes) {
  thread& t = *m.running;
  std::uint64_t value = 0;
  std::memcpy(&value, at, std::size_t(bytes));
  const bool again = !t.polled.empty() && t.polled.back() == std::pair<const void*, std::uint64_t>(at, value);
  t.spins = again ? t.spins + 1 : 0;
  if (t.spins >= spins_at_most) {
    wait_until("a change of " + describe(at) + ", which is " + std::to_string(value), true, [at, value, bytes] {
      std::uint64_t now = 0;
      std::memcpy(&now, at, std::size_t(bytes));
      return now != value;
    });
    t.spins = 0;
    return;
  }
  if (again) return;
  if (t.polled.size() == polled_at_most) t.polled.pop_front();
  t.polled.emplace_back(at, value);
}

void load(const instruction& i, const execution& e) {
  unsigned char* const at = address(i, e.get(i.arguments.back()));
  thread& t = *m.running;
  touch(at, std::size_t(i.elements * i.bytes), manner_of(i, false), e.where());
  if (i.strong) pause();
  if (!i.shared)
    for (int k = 0; k < i.elements; ++k) poll(at + k * i.bytes, i.bytes);
  for (int k = 0; k < i.elements; ++k) {
    std::uint64_t value = 0;
    std::memcpy(&value, at + k * i.bytes, std::size_t(i.bytes));
    e.set(i.arguments[std::size_t(k)], value);
    if (i.strong) after_load(t, reinterpret_cast<std::uint64_t>(at + k * i.bytes), i.acquires, i.wide, e.where());
  }
}

void store(const instruction& i, const execution& e) {
  unsigned char* const at = address(i, e.get(i.arguments[0]));
  thread& t = *m.running;
  touch(at, std::size_t(i.elements * i.bytes), manner_of(i, true), e.where());
  for (int k = 0; k < i.elements; ++k) {
    const std::uint64_t value = e.get(i.arguments[std::size_t(k + 1)]);
    std::memcpy(at + k * i.bytes, &value, std::size_t(i.bytes));
    if (i.strong)
      after_store(t, reinterpret_cast<std::uint64_t>(at + k * i.bytes), i.releases, i.wide, false, e.where());
  }
  t.polled.clear();
  if (i.strong) pause();
}

// red and atom: add, inc, exch, max.
void modify(const instruction& i, const execution& e) {
  const bool returns = i.words[0] == "atom";
  const std::size_t first = returns ? 1 : 0;
  unsigned char* const at = address(i, e.get(i.arguments[first]));
  const std::uint64_t by = e.get(i.arguments[first + 1]);
  thread& t = *m.running;
  manner how = manner_of(i, true);
  how.strong = true;  // relaxed is the least an atomic can be
  touch(at, std::size_t(i.bytes), how, e.where());
  std::uint64_t old = 0;
  std::memcpy(&old, at, std::size_t(i.bytes));
  const std::uint64_t to = i.is("inc")    ? (old >= by ? 0 : old + 1)
                           : i.is("exch") ? by
                           : i.is("max")  ? std::max(old, by)
                                          : old + by;
  std::memcpy(at, &to, std::size_t(i.bytes));
  if (returns) {
    after_load(t, reinterpret_cast<std::uint64_t>(at), i.acquires, i.wide, e.where());
    e.set(i.arguments[0], old);
  }
  after_store(t, reinterpret_cast<std::uint64_t>(at), i.releases, i.wide, true, e.where());
  t.polled.clear();
  pause();
}

// --- warps --------------------------------------------------------------------------------------------

// Four 8 x 8 matrices; lane r of eight lanes each names row r of one of them.
void matrices(const instruction& i, const execution& e) {
  const bool loads = i.words[0] == "ldmatrix";
  const argument& where = loads ? i.arguments.back() : i.arguments.front();
  thread& t = *m.running;
  unsigned char* const mine = address(i, e.get(where));
  touch(mine, 16, manner_of(i, !loads), e.where());
  t.given = reinterpret_cast<std::uint64_t>(mine);
  t.registers.clear();
  for (int k = 0; k < 4; ++k) t.registers.push_back({nullptr, loads ? 0 : e.get(i.arguments[std::size_t(k + 1)]), 4});
  with_warp([loads](std::vector<thread*>& warp) {
    unsigned char* rows[32];
    for (thread* other : warp) rows[other->index % 32] = reinterpret_cast<unsigned char*>(other->given);
    for (thread* other : warp)
      for (int k = 0; k < 4; ++k) {
        const int lane = other->index % 32;
        unsigned char* const at = rows[k * 8 + lane / 4] + lane % 4 * 4;
        if (loads)
          std::memcpy(&other->registers[std::size_t(k)].value, at, 4);
        else
          std::memcpy(at, &other->registers[std::size_t(k)].value, 4);
      }
  });
  if (loads)
    for (int k = 0; k < 4; ++k) e.set(i.arguments[std::size_t(k)], t.registers[std::size_t(k)].value);
}

void wgmma(const instruction& i, const execution& e) {
  if (i.is("fence")) return;
  if (i.is("commit_group")) return mma_commit();
  if (i.is("wait_group")) return mma_wait(int(e.get(i.arguments[0])));
  const std::string& shape = i.words[4];  // m64n128k16
  const int n = std::atoi(shape.c_str() + shape.find('n') + 1);
  const auto at = [&](int k) { return e.get(i.arguments[std::size_t(n / 2 + k)]); };
  multiply_add(n, i.is("bf16"), at(6) != 0, e.operands, at(0), at(1), at(2) != 0, e.where());
}

// --- mbarriers, bulk copies, fences ---------------------------------------------------------------------

void mbarrier_act(const instruction& i, const execution& e) {
  const auto at = [&](std::size_t k) { return std::uint32_t(e.get(i.arguments[k])); };
  if (i.is("init")) return mbarrier_init(at(0), int(at(1)), e.where());
  if (i.is("arrive")) return mbarrier_arrive(at(1), e.where());
  if (i.is("expect_tx")) return mbarrier_expect(at(0), int(at(1)));
  e.set(i.arguments[0], mbarrier_wait(at(1), at(2), e.where()));
}

void bulk(const instruction& i, const execution& e) {
  if (i.is("commit_group")) return bulk_commit();
  if (i.is("wait_group")) return bulk_wait(int(e.get(i.arguments[0])), i.is("read"), e.where());
  const auto at = [&](std::size_t k) { return e.get(i.arguments[k]); };
  const auto number = [&](std::size_t k) { return int(std::uint32_t(at(k))); };
  if (i.is("mbarrier::complete_tx::bytes"))
    bulk_load(std::uint32_t(at(0)), reinterpret_cast<const void*>(at(1)), number(2), number(3), number(4),
              std::uint32_t(at(5)), e.where());
  else
    bulk_store(reinterpret_cast<const void*>(at(0)), number(1), number(2), number(3), std::uint32_t(at(4)),
               i.is("reduce"), e.where());
}

void fence(const instruction& i, const execution&) {
  thread& t = *m.running;
  if (i.is("mbarrier_init"))
    fence_shared(t);
  else if (i.is("proxy") && i.shared)
    fence_shared(t);
  else if (i.is("proxy"))
    fence_all(t);
  else
    fence_scope(t, i.wide);
}

// --- registers ------------------------------------------------------------------------------------------

void convert(const instruction& i, const execution& e) {
  const auto at = [&](std::size_t k) { return e.get(i.arguments[k]); };
  const std::string &to = i.words[i.words.size() - 2], &from = i.words.back();
  if (from != "f32") return e.set(i.arguments[0], std::bit_cast<std::uint32_t>(from_fp16(std::uint16_t(at(1)))));
  const auto rounded = [&](std::uint64_t v) {
    return to.starts_with("bf16") ? to_bf16(float_of(v)) : to_fp16(float_of(v));
  };
  if (to.ends_with("x2"))
    e.set(i.arguments[0], std::uint64_t(rounded(at(1))) << 16 | rounded(at(2)));
  else
    e.set(i.arguments[0], rounded(at(1)));
}

void move(const instruction& i, const execution& e) {
  const argument& from = i.arguments.back();
  if (from.kind == argument::special) {
    thread& t = *m.running;
    if (!t.polled.empty()) {
      const auto words = std::move(t.polled);
      t.polled.clear();
      const auto changed = [words] {
        for (const auto& [at, value] : words)
          if (std::memcmp(at, &value, 4) != 0 || (value >> 32 != 0 && std::memcmp(at, &value, 8) != 0)) return true;
        return false;
      };
      if (!changed())
        wait_until("a change of " + describe(words[0].first) + ", which is " + std::to_string(words[0].second), true,
                   changed);
    }
    return e.set(i.arguments[0], m.ns);
  }
  const std::uint64_t value = e.get(from);
  if (i.arguments.size() == 2) return e.set(i.arguments[0], value);
  e.set(i.arguments[0], value & 0xffff), e.set(i.arguments[1], value >> 16 & 0xffff);
}

void choose(const instruction& i, const execution& e) {
  e.set(i.arguments[0], e.get(i.arguments[3]) != 0 ? e.get(i.arguments[1]) : e.get(i.arguments[2]));
}

void compare(const instruction& i, const execution& e) {
  e.set(i.arguments[0], e.get(i.arguments[1]) != e.get(i.arguments[2]));
}

void meet(const instruction& i, const execution& e) { barrier(int(e.get(i.arguments[0])), int(e.get(i.arguments[1]))); }

void nothing(const instruction&, const execution&) {}

void trap(const instruction&, const execution&) { stop("trap", name_of(*m.running) + " stopped its GPU"); }

}  // namespace

act find_execute(const instruction& i) {
  static const std::map<std::string, act> known = {
      {"ld", load},           {"st", store},          {"red", modify},  {"atom", modify},
      {"ldmatrix", matrices}, {"stmatrix", matrices}, {"wgmma", wgmma}, {"mbarrier", mbarrier_act},
      {"cp", bulk},           {"fence", fence},       {"cvt", convert}, {"mov", move},
      {"selp", choose},       {"setp", compare},      {"bar", meet},    {"setmaxnreg", nothing},
      {"trap", trap}};
  const auto found = known.find(i.words[0]);
  if (found == known.end()) stop("fault", "the emulator does not know the instruction `" + i.text + "`");
  return found->second;
}

void program::run(std::initializer_list<operand> operands) {
  if (code_ == nullptr) code_ = decode(text_);
  std::uint64_t names[8] = {};
  const execution e = {operands, names, __builtin_return_address(0)};
  for (const instruction& i : code_->instructions) i.execute(i, e);
}

}  // namespace pk::emulated
