// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/transport/token_set.h>

#include <fstream>
#include <string>

#include <doctest/doctest.h>

#include <millrace/tensor/error.h>
#include <support/bytes.h>

using namespace millrace;
using namespace millrace::testing;

TEST_CASE("each token of a file is held, and nothing that differs from it in one character or in length") {
  const ScratchFolder folder;
  const std::string file = (folder / "tokens").string();
  const std::string one = "0123456789abcdef", two(TokenSet::most_characters, 'z');
  std::ofstream(file) << "# names of tokens\n" << one << "\r\n\n" << two << "\n";
  const TokenSet tokens(file);
  CHECK(tokens.size() == 2);
  CHECK(read_token(file) == one);
  for (const std::string& token : {one, two}) {
    CHECK(tokens.holds(token));
    for (std::size_t i = 0; i < token.size(); ++i) {
      std::string changed = token;
      changed[i] = changed[i] == 'x' ? 'y' : 'x';
      CHECK_FALSE(tokens.holds(changed));
    }
    CHECK_FALSE(tokens.holds(token.substr(1)));
    CHECK_FALSE(tokens.holds(token + "0"));
    CHECK_FALSE(tokens.holds(token + std::string(1, '\0')));
  }
  CHECK_FALSE(tokens.holds(""));
  CHECK_FALSE(tokens.holds(one + two));
}

TEST_CASE("a file without tokens, or with a line that is none, is refused by file and line and quotes nothing") {
  const ScratchFolder folder;
  const std::string file = (folder / "tokens").string();
  CHECK_THROWS_WITH_AS(TokenSet{file}, doctest::Contains(file.c_str()), IoError);
  std::ofstream(file) << "# only this\n";
  CHECK_THROWS_WITH_AS(TokenSet{file}, doctest::Contains("expected a token a line, found none"), ParseError);
  for (const std::string& wrong :
       {std::string("short"), std::string(TokenSet::most_characters + 1, 'a'), std::string("with a space in it x")}) {
    std::ofstream(file) << "0123456789abcdef\n" << wrong << "\n";
    try {
      static_cast<void>(TokenSet{file});
      FAIL("expected a ParseError");
    } catch (const ParseError& error) {
      const std::string what = error.what();
      CHECK(what.find(file + ", line 2: expected 16 to 128 characters") != what.npos);
      CHECK(what.find(wrong) == what.npos);
    }
  }
}

TEST_CASE("reload takes the tokens that are in the file now, and keeps the old ones when it is wrong") {
  const ScratchFolder folder;
  const std::string file = (folder / "tokens").string(), before(20, 'a'), after(20, 'b');
  std::ofstream(file) << before << "\n";
  TokenSet tokens(file);
  std::ofstream(file) << "wrong\n";
  CHECK_THROWS_AS(tokens.reload(), ParseError);
  CHECK(tokens.holds(before));
  std::ofstream(file) << after << "\n";
  tokens.reload();
  CHECK_FALSE(tokens.holds(before));
  CHECK(tokens.holds(after));
}

TEST_CASE("tokens may be given without a file, and stay as they are") {
  const std::string one = "0123456789abcdef", two = "another-token-of-characters";
  TokenSet tokens = TokenSet::of({one, two});
  tokens.reload();
  CHECK(tokens.size() == 2);
  CHECK(tokens.holds(one));
  CHECK(tokens.holds(two));
  CHECK_FALSE(tokens.holds(one + "0"));
  CHECK_THROWS_WITH_AS(TokenSet::of({}), doctest::Contains("expected one or more, found none"), ArgumentError);
  try {
    TokenSet::of({one, "secret"});
    FAIL("expected an ArgumentError");
  } catch (const ArgumentError& error) {
    CHECK(std::string(error.what()).find("token 1: expected 16 to 128 characters") != std::string::npos);
    CHECK(std::string(error.what()).find("secret") == std::string::npos);
  }
  CHECK_THROWS_AS(TokenSet{std::string()}, IoError);
}
