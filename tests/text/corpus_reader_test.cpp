#include "text/corpus_reader.h"

#include <gtest/gtest.h>

#include "io/io_test_support.h"

namespace kda::text {
namespace {

using test::expect_error;
using test::put;
using test::TempFolder;

struct Read {
  std::vector<std::string> texts;
  std::vector<std::uint64_t> lines;
  CorpusStats stats;
};

Read read(const std::vector<std::filesystem::path>& files, const CorpusOptions& options = {}) {
  Read result;
  result.stats = read_corpus(files, options, [&](const CorpusDocument& document) {
    result.texts.emplace_back(document.text);
    result.lines.push_back(document.line);
    return true;
  });
  return result;
}

using Texts = std::vector<std::string>;

TEST(CorpusReader_Text, EmptyLinesSeparate) {
  const TempFolder folder;
  put(folder / "a.txt", "\n\nfirst line\n  second\tline  \n\n \t\nthird\n\n\n");
  const Read r = read({folder / "a.txt"});
  EXPECT_EQ(r.texts, (Texts{"first line\n  second\tline  ", "third"}));
  EXPECT_EQ(r.lines, (std::vector<std::uint64_t>{3, 7}));
  EXPECT_EQ(r.stats.documents, 2u);
  EXPECT_EQ(r.stats.bytes, r.texts[0].size() + r.texts[1].size());
}

TEST(CorpusReader_Text, LastLineNeedsNoNewlineAndCrlfIsLf) {
  const TempFolder folder;
  put(folder / "a.txt", "\xEF\xBB\xBFone\r\ntwo\r\n\r\nthree");
  EXPECT_EQ(read({folder / "a.txt"}).texts, (Texts{"one\ntwo", "three"}));
  put(folder / "b.txt", "");
  EXPECT_TRUE(read({folder / "b.txt"}).texts.empty());
}

TEST(CorpusReader_Text, NulAndPrivateMarksPassThrough) {
  const TempFolder folder;
  const std::string text("a\0b \xE2\x96\x81 \xF4\x8F\xBF\xBF", 13);
  put(folder / "a.txt", text);
  EXPECT_EQ(read({folder / "a.txt"}).texts, Texts{text});
}

TEST(CorpusReader_Jsonl, TextAndTitle) {
  const TempFolder folder;
  put(folder / "a.jsonl",
      "{\"text\":\"one\\ntwo\",\"id\":7}\n\n{\"title\":\"T\",\"text\":\"body\"}\r\n"
      "{\"text\":\" \\n\"}\n{\"title\":null,\"text\":\"\\u0000中\"}");
  const Read r = read({folder / "a.jsonl"});
  EXPECT_EQ(r.texts, (Texts{"one\ntwo", "T\n\nbody", std::string("\0中", 4)}));
  EXPECT_EQ(r.lines, (std::vector<std::uint64_t>{1, 3, 5}));
  EXPECT_EQ(r.stats.skipped_empty, 1u);
}

TEST(CorpusReader_Jsonl, ErrorsNameFileAndLine) {
  const TempFolder folder;
  const std::pair<const char*, const char*> cases[] = {
      {"{\"text\":\"a\"}\n{\"txt\":\"b\"}\n", "line 2: no \"text\""},
      {"{\"text\":3}", "line 1: \"text\" is not a string"},
      {"{\"text\":\"a\",\"title\":3}", "\"title\" is not a string"},
      {"[1]", "expected a JSON object"},
      {"{\"text\":\"a\"", "not valid JSON"},
      {"{\"text\":\"\\ud800\"}", "not valid JSON"},
      {"{\"text\":\"a\",\"text\":\"b\"}", "appears twice"},
      {"{\"text\":\"\xFF\"}", "line 1: byte 10 is not UTF-8"},
  };
  for (const auto& [text, part] : cases) {
    SCOPED_TRACE(text);
    put(folder / "bad.jsonl", text);
    expect_error(ErrorCode::kIo, {"bad.jsonl", part}, [&] { read({folder / "bad.jsonl"}); });
  }
}

TEST(CorpusReader_InvalidUtf8, IsAnErrorOrReplaced) {
  const TempFolder folder;
  put(folder / "a.txt",
      "good\nb\xFF"
      "d \xE4\xB8\n");
  expect_error(ErrorCode::kIo, {"a.txt", "line 2: byte 2 is not UTF-8"},
               [&] { read({folder / "a.txt"}); });
  const Read r = read({folder / "a.txt"}, {.invalid_utf8 = InvalidUtf8::kReplace});
  EXPECT_EQ(r.texts, Texts{"good\nb\xEF\xBF\xBD"
                           "d \xEF\xBF\xBD\xEF\xBF\xBD"});
  EXPECT_EQ(r.stats.replaced_bytes, 3u);
}

TEST(CorpusReader_Limits, StopAndSize) {
  const TempFolder folder;
  put(folder / "a.txt", "one\n\ntwo\n\nthree\n");
  put(folder / "b.jsonl", "{\"text\":\"four\"}\n");
  EXPECT_EQ(read({folder / "a.txt", folder / "b.jsonl"}, {.max_documents = 2}).texts,
            (Texts{"one", "two"}));
  EXPECT_EQ(read({folder / "a.txt", folder / "b.jsonl"}).texts.size(), 4u);
  int calls = 0;
  const auto stats = read_corpus({folder / "a.txt", folder / "b.jsonl"}, {},
                                 [&](const CorpusDocument&) { return ++calls < 3; });
  EXPECT_EQ(stats.documents, 3u);
  expect_error(ErrorCode::kIo, {"a.txt", "line 5", "more than 4 bytes"},
               [&] { read({folder / "a.txt"}, {.max_document_bytes = 4}); });
  expect_error(ErrorCode::kIo, {"b.jsonl", "line 1"},
               [&] { read({folder / "b.jsonl"}, {.max_document_bytes = 4}); });
}

TEST(CorpusReader_Files, ExtensionAndExistence) {
  const TempFolder folder;
  expect_error(ErrorCode::kInvalidArgument, {"x.csv", ".txt or .jsonl"},
               [&] { read({folder / "x.csv"}); });
  expect_error(ErrorCode::kIo, {"x.txt", "No such file"}, [&] { read({folder / "x.txt"}); });
}

}  // namespace
}  // namespace kda::text
