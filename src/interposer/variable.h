// Environment variables that set the library up. Each is a row beside the code that goes by it: its name, what is accepted and what it
// means. The log names a wrong value; docs/reference has the rows, as tools/reference.py reads them.
#pragma once

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <string_view>

#include "interposer/log.h"

namespace nvshare::interposer {

// One that is an amount, a number or a path.
struct Variable {
  const char* name;
  const char* accepted;  // these two for documents
  const char* meaning;
};

// One that is a word of a few.
template <typename Value, size_t kCount>
struct ChoiceVariable {
  struct Choice {
    const char* text;
    Value value;
  };

  const char* name;
  Choice choices[kCount];
  Value unset;          // what holds where it is not there, or empty,
  Value wrong;          // and where it is none of the choices;
  const char* then;     // the log says that so
  const char* meaning;  // for documents

  // Null: `text` is none of them.
  const Choice* find(std::string_view text) const {
    for (const Choice& choice : choices) {
      if (text == choice.text) return &choice;
    }
    return nullptr;
  }

  // "NAME is 'text'; accepted: a, b. And then".
  template <size_t kSize>
  void explain(const char* text, char (&line)[kSize]) const {
    int length = snprintf(line, kSize, "%s is '%.40s'; accepted: ", name, text);
    for (size_t i = 0; i < kCount && length > 0 && length < static_cast<int>(kSize); ++i)
      length += snprintf(line + length, kSize - static_cast<size_t>(length), "%s%s", i == 0 ? "" : ", ", choices[i].text);
    if (length > 0 && length < static_cast<int>(kSize)) snprintf(line + length, kSize - static_cast<size_t>(length), ". %s", then);
  }
};

// Reads it; a wrong value is an error in the log.
template <typename Value, size_t kCount>
Value value_of(const ChoiceVariable<Value, kCount>& variable) {
  const char* text = getenv(variable.name);
  if (text == nullptr || *text == '\0') return variable.unset;
  if (const auto* choice = variable.find(text)) return choice->value;
  char line[256];
  variable.explain(text, line);
  log(LogLevel::kError, "%s", line);
  return variable.wrong;
}

}  // namespace nvshare::interposer
