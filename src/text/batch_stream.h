/// An endless stream of training batches whose place can be saved and restored.
#pragma once

#include "text/packing.h"

namespace kda::text {

class BatchStream {
 public:
  virtual ~BatchStream() = default;
  virtual PackedBatch next() = 0;
  /// Where the next batch begins.
  virtual DataCursor cursor() const = 0;
  /// Error(kInvalidArgument) when the cursor belongs to other data or another seed.
  virtual void restore(const DataCursor& cursor) = 0;
};

/// PackedStream as a BatchStream.
class TextBatches final : public BatchStream {
 public:
  TextBatches(std::shared_ptr<const TokenDataset> data, PackingOptions options)
      : stream_(std::move(data), std::move(options)) {}
  PackedBatch next() override { return stream_.next(); }
  DataCursor cursor() const override { return stream_.cursor(); }
  void restore(const DataCursor& cursor) override { stream_.restore(cursor); }

 private:
  PackedStream stream_;
};

}  // namespace kda::text
