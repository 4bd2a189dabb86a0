#include "train/prefetch.h"

namespace kda::train {

text::PackedBatch Prefetch::next() {
  const auto make = [this] {
    Ahead ahead;
    ahead.batch = stream_->next();
    ahead.cursor = stream_->cursor();
    return ahead;
  };
  Ahead taken = ahead_.valid() ? ahead_.get() : make();
  cursor_ = taken.cursor;
  ahead_ = std::async(std::launch::async, make);
  return std::move(taken.batch);
}

void Prefetch::restore(const text::DataCursor& cursor) {
  wait();
  stream_->restore(cursor);
  cursor_ = cursor;
}

/// The other thread must not touch the stream any more.
void Prefetch::wait() {
  if (!ahead_.valid()) return;
  ahead_.wait();
  ahead_ = {};
}

}  // namespace kda::train
