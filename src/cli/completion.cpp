#include "cli/completion.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "cli/app.h"
#include "cli/python_verbs.h"
#include "kda/backend.h"
#include "kda/error.h"
#include "model/config.h"

namespace kda::cli {
namespace {

using Verbs = std::vector<CompletionVerb>;

/// Options whose values are few words, wherever they occur.
std::vector<std::string> choices_of(const std::string& name) {
  if (name == "--preset") return model::KDAConfig::preset_names();
  if (name == "--backend") {
    std::vector<std::string> names{"auto"};
    for (Backend backend : available_backends())
      names.emplace_back(name_of(backend));
    return names;
  }
  static const std::map<std::string, std::vector<std::string>> kWords = {
      {"--attnres", {"off", "block", "full"}}, {"--device", {"auto", "cpu", "cuda"}},
      {"--dtype", {"fp32", "bf16"}},           {"--optimizer", {"adamw", "muon"}},
      {"--schedule", {"cosine", "wsd"}},       {"--target-lang", {"en", "zh"}},
      {"--translate", {"en", "zh"}},           {"--type", {"bpe", "unigram"}},
  };
  const auto found = kWords.find(name);
  return found == kWords.end() ? std::vector<std::string>{} : found->second;
}

/// The names that the help gives to values that may be a file or a folder.
bool is_path_type(const std::string& type) {
  static const char* const kPaths[] = {"TEXT", "FILE", "DIR", "PATH", "RUN", "MODEL", "SRC", "DST"};
  return std::find(std::begin(kPaths), std::end(kPaths), type) != std::end(kPaths);
}

/// The first clause of a help text, cut at a word: menus of shells are narrow.
std::string short_text(const std::string& text) {
  constexpr std::size_t kWidth = 70;
  std::string first = text.substr(0, std::min(text.find_first_of(";\n"), text.find(" (")));
  if (first.size() <= kWidth) return first;
  return first.substr(0, first.rfind(' ', kWidth)) + " ...";
}

CompletionOption describe(const CLI::Option& option) {
  CompletionOption out;
  for (const std::string& name : option.get_snames())
    out.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames())
    out.names.push_back("--" + name);
  out.about = short_text(option.get_description());
  out.takes_value = option.get_items_expected_max() > 0;
  if (out.takes_value) {
    out.choices = choices_of(out.names.back());
    out.takes_path = out.choices.empty() && is_path_type(option.get_type_name());
  }
  return out;
}

void collect(const CLI::App& app, const std::string& path, Verbs& out) {
  CompletionVerb verb;
  verb.path = path;
  verb.about = short_text(app.get_description());
  for (const CLI::Option* option : app.get_options()) {
    if (option->nonpositional() && !option->get_group().empty())
      verb.options.push_back(describe(*option));
  }
  std::vector<const CLI::App*> children;
  for (const CLI::App* child : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (child->get_name().empty() || child->get_group().empty()) continue;
    verb.verbs.push_back(child->get_name());
    children.push_back(child);
  }
  out.push_back(std::move(verb));
  for (const CLI::App* child : children)
    collect(*child, path + "/" + child->get_name(), out);
}

std::string joined(const std::vector<std::string>& words, const char* between) {
  std::string out;
  for (const std::string& word : words)
    out += (out.empty() ? "" : between) + word;
  return out;
}

/// 'text', with every ' in it written as `quote_in_quotes`.
std::string quoted(const std::string& text, const std::string& quote_in_quotes) {
  std::string out = "'";
  for (char c : text) {
    if (c == '\'') {
      out += quote_in_quotes;
    } else {
      out += c;
    }
  }
  return out + "'";
}

std::string for_posix(const std::string& text) { return quoted(text, R"('\'')"); }
std::string for_fish(const std::string& text) { return quoted(text, R"(\')"); }

/// "/data|/data/build|...": what a word may add to the verbs typed before it.
std::string all_paths(const Verbs& verbs, const char* between) {
  std::vector<std::string> paths;
  for (const CompletionVerb& verb : verbs) {
    if (!verb.path.empty()) paths.push_back(verb.path);
  }
  return joined(paths, between);
}

/// Patterns "'/train --out'" of all options that `pick` takes, joined by "|".
std::string option_patterns(const Verbs& verbs,
                            const std::function<bool(const CompletionOption&)>& pick) {
  std::vector<std::string> out;
  for (const CompletionVerb& verb : verbs) {
    for (const CompletionOption& option : verb.options) {
      if (!option.takes_value || !pick(option)) continue;
      for (const std::string& name : option.names)
        out.push_back("'" + verb.path + " " + name + "'");
    }
  }
  return joined(out, "|");
}

bool wants_path(const CompletionOption& option) { return option.takes_path; }
bool wants_other(const CompletionOption& option) {
  return !option.takes_path && option.choices.empty();
}

/// Branches of a `case` over "verb option" for options with a few words, e.g. --device.
std::string choice_branches(const Verbs& verbs, const std::string& before,
                            const std::string& after) {
  std::map<std::string, std::vector<std::string>> patterns;
  for (const CompletionVerb& verb : verbs) {
    for (const CompletionOption& option : verb.options) {
      for (const std::string& name : option.names) {
        if (!option.choices.empty())
          patterns[joined(option.choices, " ")].push_back("'" + verb.path + " " + name + "'");
      }
    }
  }
  std::string out;
  for (const auto& [words, cases] : patterns)
    out += "    " + joined(cases, "|") + ") " + before + words + after + " ;;\n";
  return out;
}

std::string bash_script(const Verbs& verbs) {
  std::string out =
      "# Completion of kda for bash: eval \"$(kda completion bash)\"\n"
      "_kda() {\n"
      "  local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} at='' i\n"
      "  local verbs='' options=''\n"
      "  COMPREPLY=()\n"
      "  # --out=runs/a comes as three words\n"
      "  if [[ $word == '=' ]]; then word=''\n"
      "  elif [[ $previous == '=' ]]; then previous=${COMP_WORDS[COMP_CWORD-2]}; fi\n"
      "  for ((i = 1; i < COMP_CWORD; ++i)); do\n"
      "    case \"$at/${COMP_WORDS[i]}\" in\n      " +
      all_paths(verbs, "|") +
      ")\n        at+=/${COMP_WORDS[i]} ;;\n    esac\n  done\n"
      "  case \"$at $previous\" in\n"
      "    " +
      option_patterns(verbs, wants_path) + ") return ;;\n    " +
      option_patterns(verbs, wants_other) + ") compopt +o default 2>/dev/null; return ;;\n" +
      choice_branches(verbs, "mapfile -t COMPREPLY < <(compgen -W '", "' -- \"$word\"); return") +
      "  esac\n  case \"$at\" in\n";
  for (const CompletionVerb& verb : verbs) {
    std::vector<std::string> names;
    for (const CompletionOption& option : verb.options)
      names.insert(names.end(), option.names.begin(), option.names.end());
    out += "    '" + verb.path + "') verbs='" + joined(verb.verbs, " ") + "' options='" +
           joined(names, " ") + "' ;;\n";
  }
  out +=
      "  esac\n"
      "  if [[ $word == -* ]]; then mapfile -t COMPREPLY < <(compgen -W \"$options\" -- "
      "\"$word\")\n"
      "  elif [[ -n $verbs ]]; then\n"
      "    mapfile -t COMPREPLY < <(compgen -W \"$verbs\" -- \"$word\")\n"
      "    compopt +o default 2>/dev/null\n"
      "  fi\n"
      "}\n"
      "complete -o default -F _kda kda\n";
  return out;
}

/// "name:about" with the colons of `name` and `about` kept apart.
std::string zsh_entry(const std::string& name, const std::string& about) {
  std::string safe;
  for (char c : name)
    safe += c == ':' ? "\\:" : std::string(1, c);
  return for_posix(safe + ":" + about);
}

std::string zsh_script(const Verbs& verbs) {
  std::string out =
      "#compdef kda\n"
      "# Completion of kda for zsh: put it into a folder of $fpath as _kda, or\n"
      "# source <(kda completion zsh) after compinit.\n"
      "_kda() {\n"
      "  local previous=${words[CURRENT-1]} at='' i\n"
      "  local -a verbs options\n"
      "  for ((i = 2; i < CURRENT; ++i)); do\n"
      "    case \"$at/${words[i]}\" in\n      " +
      all_paths(verbs, "|") +
      ")\n        at+=/${words[i]} ;;\n    esac\n  done\n"
      "  case \"$at $previous\" in\n    " +
      option_patterns(verbs, wants_path) + ") _files; return ;;\n    " +
      option_patterns(verbs, wants_other) + ") _message value; return ;;\n" +
      choice_branches(verbs, "compadd -- ", "; return") + "  esac\n  case \"$at\" in\n";
  const auto about = [&](const std::string& path) {
    const auto found =
        std::find_if(verbs.begin(), verbs.end(), [&](const auto& v) { return v.path == path; });
    return found->about;
  };
  for (const CompletionVerb& verb : verbs) {
    out += "    '" + verb.path + "')\n      verbs=(";
    for (const std::string& name : verb.verbs)
      out += " " + zsh_entry(name, about(verb.path + "/" + name));
    out += ")\n      options=(";
    for (const CompletionOption& option : verb.options) {
      for (const std::string& name : option.names)
        out += " " + zsh_entry(name, option.about);
    }
    out += ") ;;\n";
  }
  out +=
      "  esac\n"
      "  if [[ $PREFIX == -* ]]; then _describe -o option options\n"
      "  elif (( $#verbs )); then _describe command verbs\n"
      "  else _files; fi\n"
      "}\n"
      "if [[ ${funcstack[1]} == _kda ]]; then _kda \"$@\"; else compdef _kda kda; fi\n";
  return out;
}

std::string fish_script(const Verbs& verbs) {
  std::string out =
      "# Completion of kda for fish: kda completion fish | source\n"
      "function __kda_at\n"
      "  set -l at ''\n"
      "  for word in (commandline -opc)[2..-1]\n"
      "    switch \"$at/$word\"\n"
      "      case " +
      all_paths(verbs, " ") +
      "\n        set at \"$at/$word\"\n    end\n  end\n"
      "  test \"$at\" = \"$argv[1]\"\nend\n";
  for (const CompletionVerb& verb : verbs) {
    const std::string here = "complete -c kda -n '__kda_at \"" + verb.path + "\"'";
    for (const std::string& child : verb.verbs) {
      for (const CompletionVerb& other : verbs) {
        if (other.path == verb.path + "/" + child)
          out += here + " -f -a " + child + " -d " + for_fish(other.about) + "\n";
      }
    }
    for (const CompletionOption& option : verb.options) {
      out += here;
      for (const std::string& name : option.names)
        out += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      if (option.takes_value) out += option.takes_path ? " -r -F" : " -x";
      if (!option.choices.empty()) out += " -a '" + joined(option.choices, " ") + "'";
      out += " -d " + for_fish(option.about) + "\n";
    }
  }
  return out;
}

/// Gives a verb that the program only passes on its options, or adds one below such a verb.
void add_python_verb(CompletionVerb python, Verbs& out) {
  const auto find = [&](const std::string& path) {
    return std::find_if(out.begin(), out.end(), [&](const auto& v) { return v.path == path; });
  };
  if (const auto known = find(python.path); known != out.end()) {
    known->options = std::move(python.options);
    return;
  }
  const std::size_t slash = python.path.rfind('/');
  find(python.path.substr(0, slash))->verbs.push_back(python.path.substr(slash + 1));
  out.push_back(std::move(python));
}

}  // namespace

Verbs completion_verbs(const CLI::App& app) {
  Verbs out;
  collect(app, "", out);
  for (CompletionVerb& python : python_verbs())
    add_python_verb(std::move(python), out);
  return out;
}

std::string completion_script(const Verbs& verbs, const std::string& shell) {
  if (shell == "bash") return bash_script(verbs);
  if (shell == "zsh") return zsh_script(verbs);
  if (shell == "fish") return fish_script(verbs);
  throw Error(ErrorCode::kInvalidArgument,
              "shell: expected bash, zsh or fish, got '" + shell + "'");
}

}  // namespace kda::cli
