// The schedule: the plan as one rank has to work it off. Streams of chunks, each in plan order, and
// counts to wait for.
//
// Everything that moves, moves in a stream, and a stream's progress is one number: how many of its
// chunks are done. A rank has at most one stream of each kind:
//   fill     chunks that this rank copies out of its own pool (it is the owner, and a recipient)
//   receive  chunks that this rank takes from another rank's pool, or from the stop before it
//
// Where a chunk lands, and when it may:
//   kPerHost          in the host's ring, for all. The ring's space must be free: see
//                     Bucket::reuse_after.
//   kPerRank, direct  in the ring of its rank, the only recipient of its host. As above.
//   kPerRank          in the staging of its rank: chunk i in slot i % slots of its stream, when
//                     every recipient of the host has pulled chunk i - slots, and `next_stop` has
//                     taken it. Every recipient pulls it from there into its own ring, when that
//                     ring's space is free. The next stop reads it out of the staging, too.
//   kPerRank without  in the ring of its rank, from where the others of the host pull it (its own
//   staging           pull copies nothing). That ring's space is free when, in addition, every
//                     recipient of the host has pulled the buckets before.
//
// Nothing deadlocks: all streams and pull lists follow one order (bucket; end of the chunk in its
// part, put off by a received chunk for each hop that it has come; hops; part); each step waits
// only for steps before it in that order, or for the end of buckets before its own. The first
// unfinished step waits for nothing that has not begun. A step that waits for a slot of the staging
// waits for the next stop to take what lies there, one hop later than it came: so nothing is put
// off, and the same chunk at an earlier stop counts as before, in buckets where the staging does
// not hold two rows of what a rank receives (one chunk of each part).
// A recipient may also advance each stream of its pull list for itself: what it pulls early only
// frees staging early.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/plan.h"

namespace ckpt {

enum class StreamKind : std::uint8_t { kFill, kReceive };

struct Chunk {
  std::uint32_t part;  ///< index into Plan::parts
  std::uint32_t bucket;
  std::uint64_t part_offset;  ///< first byte, from the beginning of the part
  std::uint64_t bytes;
};

/// A chunk of a receive stream.
struct IncomingChunk {
  Chunk chunk;
  int source;      ///< rank whose memory is read
  bool from_pool;  ///< out of the owner's pool, which is always ready; else out of the ring (or
                   ///< staging) of the stop before
  /// When not from_pool: chunks of the source's receive stream that must be done. The last of them
  /// is this one.
  std::uint64_t source_ready;
  std::int32_t next_stop;  ///< rank of another host that will take the chunk from us, or -1
};

/// Chunks of one stream of this host that must be done.
struct StreamNeed {
  int rank;
  StreamKind kind;
  std::uint64_t chunks;
};

/// Chunks that rank `to` must have taken out of the ring of rank `from` (ranks of two hosts).
struct LinkNeed {
  int from, to;
  std::uint64_t chunks;
};

struct BucketSchedule {
  /// When all hold, the whole bucket lies in the ring. For kPerHost and where `direct`.
  std::vector<StreamNeed> arrived;
  std::vector<LinkNeed>
      forwarded;  ///< when all hold, no other host still needs the bucket from a ring of this host
  std::uint64_t pulled;  ///< kPerRank: when this recipient has pulled so many chunks, the bucket
                         ///< lies in its ring
};

/// kPerRank: one chunk that a recipient takes from the staging of a rank of its host (its own
/// included).
struct Pull {
  int rank;
  StreamKind kind;
  std::uint64_t sequence;  ///< the chunk's index in that stream
  Chunk chunk;
};

struct Schedule {
  std::vector<Chunk> fill;
  std::vector<IncomingChunk> receive;
  /// kPerRank: every chunk of every stream of this host in plan order. Empty with kPerHost, and
  /// where `direct`.
  std::vector<Pull> pull;
  std::vector<BucketSchedule>
      buckets;  ///< one for each bucket of the plan, as this rank's host sees it
  /// kPerRank with staging: how many chunks of each stream of this rank the staging holds; together
  /// at most staging_chunks x chunk_bytes. Zero for a stream that is empty.
  std::uint64_t fill_slots = 0;
  std::uint64_t receive_slots = 0;
  /// kPerRank: this rank is the only recipient of its host, so fill and receive go straight into
  /// its ring (unless it receives and PlanOptions::receive_into_rings is false).
  bool direct = false;
};

/// The schedule of `rank`. A rank that has nothing to do gets empty streams.
Schedule make_schedule(const Plan& plan, std::span<const PlanRank> ranks, int rank);

/// The pieces of one chunk: pool offsets at the owner and offsets from the part's beginning.
std::vector<SourceRange> chunk_ranges(const Plan& plan, const Chunk& chunk);

}  // namespace ckpt
