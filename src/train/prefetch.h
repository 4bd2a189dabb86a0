/// Makes the next batch while the present one is being computed.
#pragma once

#include <future>
#include <memory>
#include <optional>

#include "text/batch_stream.h"

namespace kda::train {

/// A stream read one batch ahead by another thread. What has been given out, and the place behind
/// it, are those of the stream alone: a batch that was made ahead and never taken leaves no trace.
class Prefetch {
 public:
  explicit Prefetch(std::unique_ptr<text::BatchStream> stream) : stream_(std::move(stream)) {
    cursor_ = stream_->cursor();
  }
  ~Prefetch() { wait(); }
  Prefetch(const Prefetch&) = delete;
  Prefetch& operator=(const Prefetch&) = delete;

  /// The next batch; the one after it is begun. Rethrows what the stream throws.
  text::PackedBatch next();

  /// Behind the last batch that `next` gave.
  const text::DataCursor& cursor() const { return cursor_; }
  void restore(const text::DataCursor& cursor);

 private:
  struct Ahead {
    text::PackedBatch batch;
    text::DataCursor cursor;
  };
  void wait();

  std::unique_ptr<text::BatchStream> stream_;
  std::future<Ahead> ahead_;
  text::DataCursor cursor_;
};

}  // namespace kda::train
