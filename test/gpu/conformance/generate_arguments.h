// How the arguments of one call are chosen, by the words of its row in the table of operations. Used by generate.cc alone.
#pragma once

#include "generate_model.h"

namespace conformance::plans {

class Arguments : public Model {
 protected:
  using Model::Model;

  void set_spans() {
    for (Arg& arg : call_.args) {
      if (arg.kind == Kind::kDst || arg.kind == Kind::kSrc) {
        const int at = arg.kind == Kind::kDst ? 3 : 2;
        arg.v[at] = arg.count > at ? arg.v[at] : n_;
        arg.count = static_cast<uint8_t>(at + 1);
      }
    }
  }

  bool take_word(Word word) {
    bool hidden = false;
    if (word[0] == '~') {
      hidden = true;
      word.remove_prefix(1);
    }
    const size_t before = call_.args.size();
    if (!(word[0] == '$'   ? take_object(word.substr(1))
          : word[0] == '#' ? take_choice(word.substr(1))
          : word[0] == '>' ? take_out(word.substr(1))
          : word[0] == '{' ? take_struct(word.substr(1, word.size() - 2))
                           : take_other(word))) {
      return false;
    }
    for (size_t i = before; hidden && i < call_.args.size(); ++i) {
      call_.args[i].hidden = true;
    }
    return true;
  }

  bool take_choice(Word word) {
    add(Kind::kInt, {choice(word)});
    return true;
  }

  bool take_out(Word word) {
    switch (word[0]) {
      case 'i':
        add(Kind::kOutInt);
        break;
      case 'q':
        add(Kind::kOutWord);
        break;
      case 'p':
        add(Kind::kOutPointer);
        break;
      case 'h':
        add(Kind::kOutHandle);
        break;
      case 's':
        add(Kind::kOutString);
        break;
      case 'z':
        add(Kind::kOutText, {number(word.substr(2))});
        break;
      case 'x': {
        word.remove_prefix(2);
        const int64_t bytes = number(take(word, ':'));
        add(Kind::kOutBytes, {bytes, number(word)});
        break;
      }
      default:
        return false;
    }
    return true;
  }

  bool take_struct(Word word) {
    Arg arg;
    arg.kind = Kind::kStruct;
    const Word name = take(word, ':');
    const int shape = shape_of(name);
    if (shape < 0) {
      return false;
    }
    arg.shape = static_cast<uint8_t>(shape);
    while (!word.empty()) {
      const Word field = take(word, ':');
      arg.v[arg.count++] = field == "P"    ? pitch_
                           : field == "W"  ? width_
                           : field == "H"  ? height_
                           : field == "N"  ? n_
                           : field == "V"  ? random_.below(1 << 20)
                           : field == "V8" ? random_.below(256)
                           : field == "d"  ? device()
                                           : choice(field);
    }
    call_.args.push_back(arg);
    return true;
  }

  // ---- objects ----
  bool take_object(Word word) {
    char sign = 0;
    if (word[0] == '+' || word[0] == '-') {
      sign = word[0];
      word.remove_prefix(1);
    }
    const char letter = word[0];
    const Word rest = word.size() > 1 && word[1] == ':' ? word.substr(2) : word.substr(1);
    if (letter == 'm') {
      return sign == '+' ? new_memory(rest) : old_memory(rest);
    }
    if (sign == '+') {
      return new_object(letter, rest);
    }
    if (letter == 's' && sign == 0) {
      return use_stream(rest);
    }
    if (letter == 'c' && sign == 0) {
      return use_context(rest);
    }
    const int slot = pick_object(letter, rest, sign == '-');
    if (slot < 0) {
      return false;
    }
    if (letter == 'x') {
      exec_ = slot;
    } else if (letter == 'g') {
      graph_ = slot;
    } else if (letter == 'j') {
      picked_ = object('j', slot).tag;
    }
    call_.args.push_back(object_arg(sign == '-' ? Kind::kGone : Kind::kHandle, letter, slot));
    return true;
  }

  bool new_object(char letter, Word rest) {
    for (int slot = letter == 'c' ? 2 : 0; slot < slots_of(letter); ++slot) {  // the first two are GPUs' primary contexts
      if (!object(letter, slot).live) {
        Arg arg = object_arg(Kind::kNew, letter, slot);
        if (letter == 'n') {
          arg.v[arg.count++] = number(rest);
        } else if (letter == 'h') {
          arg.v[arg.count++] = rest == "retained" ? 1 : 0;
        } else if ((letter == 'g' && rest == "clone") || (letter == 'c' && rest == "green")) {
          arg.v[arg.count++] = 1;
        }
        call_.args.push_back(arg);
        return true;
      }
    }
    return false;
  }

  bool use_stream(Word rest) {
    if (forced_stream_ != -9) {
      call_.args.push_back(object_arg(Kind::kHandle, 's', forced_stream_));
      return true;
    }
    if (capturing_ >= 0 && random_.chance(70)) {
      call_.args.push_back(object_arg(Kind::kHandle, 's', capturing_));
      return true;
    }
    const int slot = pick_object('s', {}, false);
    if (rest == "own" || rest == "any") {
      if (slot < 0) {
        return false;
      }
      call_.args.push_back(object_arg(Kind::kHandle, 's', slot));
      return true;
    }
    const int64_t special = slot >= 0 && random_.chance(70) ? slot : -1 - random_.below(3);
    call_.args.push_back(object_arg(Kind::kHandle, 's', special));
    return true;
  }

  // $c0: the primary context of the first GPU; $c:dst, $c:src: that of the memory; $c:now: the current one, if the program may let go of
  // it.
  bool use_context(Word rest) {
    int64_t slot = 0;
    if (rest == "dst" || rest == "src") {
      const int of = rest == "dst" ? dst_ : src_;
      slot = of >= 0 ? memory_[static_cast<size_t>(of)].context : 0;
    } else if (rest == "now") {
      slot = current_;
      call_.thread = 0;
      if (!object('c', slot).live || object('c', slot).tag == 1 || (slot < 2 && object('c', slot).attachments == 0)) {
        return false;
      }
    } else if (rest != "0") {
      slot = random_.chance(8) ? -1 : pick_object('c', {}, false);
    }
    call_.args.push_back(object_arg(Kind::kHandle, 'c', slot));
    return true;
  }

  // ---- memory ----
  bool new_memory(Word kind_name) {
    if (forced_dst_ >= 0) {
      return false;
    }
    const uint32_t kinds = kinds_of(kind_name, 0);
    int kind = 0;
    while ((kinds >> kind & 1) == 0) {
      ++kind;
    }
    for (int slot = 0; slot < kMemorySlots; ++slot) {
      if (!memory_[static_cast<size_t>(slot)].live && slot != freed_) {
        size_ = kind == kMemRegistered ? 4096 * (1 + random_.below(16)) : some_size();
        if (kind == kMemPitch) {
          width_ = 4 * (1 + random_.below(500));
          height_ = 1 + random_.below(100);
          size_ = width_ * height_;
        }
        Arg arg = object_arg(Kind::kNew, 'm', slot);
        arg.v[arg.count++] = kind;
        arg.v[arg.count++] = size_;
        region_ = slot;
        call_.args.push_back(arg);
        return true;
      }
    }
    return false;
  }

  bool old_memory(Word kinds) {
    const int slot = pick_memory(kinds_of(kinds, kDeviceKinds), false, false);
    if (slot < 0 || memory_[static_cast<size_t>(slot)].kind == kMemRegistered) {
      if (slot < 0) {
        return false;
      }
    }
    picked_ = slot;
    n_ = memory_[static_cast<size_t>(slot)].size;
    call_.args.push_back(object_arg(Kind::kGone, 'm', slot));
    return true;
  }

  bool take_dst(int64_t unit, uint32_t kinds) {
    dst_ = forced_dst_ >= 0 ? forced_dst_ : pick_memory(kinds, false, true);
    int64_t offset = 0;
    if (dst_ < 0 || !choose_piece(dst_, unit, offset, n_)) {
      return false;
    }
    add(Kind::kDst, {dst_, offset, offset == 0 && n_ == memory_[static_cast<size_t>(dst_)].size ? 1 : 0});
    return true;
  }

  // After a destination: as long as both allow.
  bool take_src(int64_t unit, uint32_t kinds) {
    src_ = picked_ >= 0 ? picked_ : pick_memory(kinds, true, true);
    if (src_ < 0 || src_ == dst_) {
      return false;
    }
    int64_t offset = 0;
    int64_t length = 0;
    if (!choose_piece(src_, unit, offset, length)) {
      return false;
    }
    if (dst_ >= 0 && length < n_) {
      n_ = length;
      for (Arg& arg : call_.args) {
        if (arg.kind == Kind::kDst) {
          arg.v[2] = 0;
        }
      }
    } else if (dst_ < 0) {
      n_ = length;
    }
    add(Kind::kSrc, {src_, offset});
    return true;
  }

  bool take_dst2d(int64_t unit) {
    if (!take_dst(unit, kDeviceKinds)) {
      return false;
    }
    Arg& arg = call_.args.back();
    height_ = 1 + random_.below(6);
    pitch_ = n_ / height_ / unit * unit;
    if (pitch_ < unit) {
      height_ = 1;
      pitch_ = n_;
    }
    width_ = (1 + random_.below(pitch_ / unit)) * unit;
    if (height_ == 1 || forced_dst_ >= 0) {
      width_ = pitch_;
    }
    n_ = pitch_ * (height_ - 1) + width_;
    arg.v[2] = arg.v[2] != 0 && width_ == pitch_ && pitch_ * height_ == memory_[static_cast<size_t>(dst_)].size ? 1 : 0;
    return true;
  }

  bool take_src2d() {
    src_ = pick_memory(kDeviceKinds, !is_quiet(), true);
    if (src_ < 0 || src_ == dst_ || memory_[static_cast<size_t>(src_)].size < n_) {
      return false;
    }
    add(Kind::kSrc, {src_, random_.chance(50) ? 0 : random_.below((memory_[static_cast<size_t>(src_)].size - n_) / 4 + 1) * 4});
    return true;
  }

  // ptr, ptr*, ptr512, ptr:KINDS, ptr:KINDS:0
  bool take_ptr(Word word) {
    const bool all = word.size() > 3 && word[3] == '*';
    const bool aligned = word.size() > 3 && word[3] == '5';
    Word rest = word;
    take(rest, ':');
    const Word kinds = take(rest, ':');
    const int slot = forced_ptr_ >= 0 ? forced_ptr_ : pick_memory(kinds_of(kinds, all ? kAllKinds : kDeviceKinds), false, false);
    if (slot < 0) {
      return false;
    }
    const Memory& m = memory_[static_cast<size_t>(slot)];
    picked_ = slot;
    int64_t offset = rest == "0" || random_.chance(50) ? 0 : random_.below(m.size);
    if (aligned) {
      offset = random_.chance(70) ? 0 : random_.below(4) * 128;
      if (m.size < offset + 2048) {
        return false;
      }
    }
    n_ = m.size - offset;
    add(Kind::kPtr, {slot, offset});
    return true;
  }

  bool take_kernel() {
    const int64_t which = random_.below(4);  // noop, fill, mix, add
    int64_t words = 0;
    if (which != 0) {
      if (!take_dst(8, kDeviceKinds)) {
        return false;
      }
      words = n_ / 8;
      call_.args.back().hidden = true;
      if (which != 1) {
        if (!memory_[static_cast<size_t>(dst_)].written) {
          return false;
        }
        call_.args.back().v[2] = 0;
      }
    }
    if (which == 3) {
      if (!take_src(8, kDeviceKinds)) {
        return false;
      }
      words = n_ / 8;
      call_.args.back().hidden = true;
    }
    which_ = which;
    words_ = words;
    add(Kind::kFunction, {which});
    return true;
  }

  // Words that stand for one plain argument.
  bool take_value(Word word) {
    int64_t value = 0;
    if (word == "size") {
      value = size_;
    } else if (word == "n" || word == "whole") {
      value = word == "whole" && picked_ >= 0 ? memory_[static_cast<size_t>(picked_)].size : n_;
    } else if (word == "n/2" || word == "n/4" || word == "n/8") {
      value = n_ / (word[2] - '0');
    } else if (word == "w" || word == "width") {
      value = width_;
    } else if (word == "w/2" || word == "w/4") {
      value = width_ / (word[2] - '0');
    } else if (word == "h" || word == "height") {
      value = height_;
    } else if (word == "pitch") {
      value = pitch_;
    } else if (word == "v8" || word == "v16" || word == "v32") {
      value = random_.below(word == "v8" ? 256 : word == "v16" ? 65536 : 1 << 30);
      value_ = value;
    } else if (word == "d") {
      value = device();
    } else if (word == "location") {
      value = random_.chance(70) ? 1 | device() << 32 : 2;
    } else if (word == "rsize") {
      value = kReservationBytes;
    } else if (word == "hsize") {
      value = kGranule;
    } else if (word == "ptxsize") {
      value = -1;
      add(Kind::kName, {100});
      return true;
    } else {
      return false;
    }
    add(Kind::kInt, {value});
    return true;
  }

  bool take_other(Word word) {
    if (take_value(word)) {
      return true;
    }
    if (word.substr(0, 5) == "dst2d") {
      return take_dst2d(word.size() > 5 ? word[5] - '0' : 1);
    }
    if (word.substr(0, 5) == "src2d") {
      return take_src2d();
    }
    if (word == "dst" || word == "udst!") {
      return take_dst(1, word == "dst" ? kDeviceKinds : kAllKinds);
    }
    if (word == "src" || word == "usrc!") {
      return take_src(1, word == "src" ? kDeviceKinds : kAllKinds);
    }
    if (word.substr(0, 6) == "srcof:") {
      return take_src(1, kinds_of(word.substr(6), 0));
    }
    if (word == "keptsrc" || word == "keptdst") {
      return take_kept(word == "keptsrc");
    }
    if (word == "dst2" || word == "dst4") {
      return take_dst(word[3] - '0', kDeviceKinds);
    }
    if (word == "dst4one" || word == "dst8one") {
      return take_one(word[3] - '0');
    }
    if (word == "waited" || word == "waited8") {
      return take_waited(word == "waited" ? 4 : 8);
    }
    if (word == "dsta" || word == "dst64" || word == "src64") {
      return take_64(word);
    }
    if (word == "pick") {
      picked_ = pick_memory(kDeviceKinds, true, true);
      if (picked_ < 0 || !choose_piece(picked_, 1, picked_offset_, n_)) {
        return false;
      }
      src_ = picked_;
      return true;
    }
    if (word == "src^") {
      add(Kind::kSrc, {picked_, picked_offset_});
      return true;
    }
    if (word.substr(0, 3) == "ptr") {
      return take_ptr(word);
    }
    return take_rest(word);
  }

  // A piece of the memory that the second process keeps open.
  bool take_kept(bool reads) {
    const Memory& m = memory_[static_cast<size_t>(picked_)];
    int64_t offset = 0;
    if (!m.live || (reads && !m.written) || !choose_piece(picked_, 1, offset, n_)) {
      return false;
    }
    if (reads) {
      add(Kind::kSrc, {picked_, offset});
    } else {
      add(Kind::kDst, {picked_, offset, offset == 0 && n_ == m.size ? 1 : 0});
    }
    return true;
  }

  bool take_one(int64_t bytes) {
    dst_ = pick_memory(kDeviceKinds & ~(1u << kMemManaged), false, true);
    if (dst_ < 0 || memory_[static_cast<size_t>(dst_)].size < bytes) {
      return false;
    }
    const int64_t offset = random_.below(memory_[static_cast<size_t>(dst_)].size / bytes) * bytes;
    add(Kind::kDst, {dst_, offset, 0, bytes});
    return true;
  }

  // Waits only for what the call before has written.
  bool take_waited(int64_t bytes) {
    if (plan_.empty()) {
      return false;
    }
    const Call& last = plan_.back();
    const Word symbol = ops()[static_cast<size_t>(last.op)].symbol;
    if (symbol.find(bytes == 4 ? "WriteValue32" : "WriteValue64") == Word::npos || last.args.size() < 3 ||
        last.args[1].kind != Kind::kDst) {
      return false;
    }
    add(Kind::kPtr, {last.args[1].v[0], last.args[1].v[1]});
    add(Kind::kInt, {last.args[2].v[0]});
    return true;
  }

  bool take_64(Word word) {
    const int slot = pick_memory(kDeviceKinds, word == "src64", true);
    if (slot < 0 || memory_[static_cast<size_t>(slot)].size < 256) {
      return false;
    }
    if (word == "src64") {
      add(Kind::kSrc, {slot, 0, 256});
    } else {
      add(Kind::kDst, {slot, 0, 0, 256});
    }
    return true;
  }

  bool take_rest(Word word) {
    if (word == "hin" || word == "hin64") {
      add(Kind::kHostIn, {random_.below(1000), word == "hin" ? n_ : 64});
    } else if (word == "hout" || word == "hout64") {
      add(Kind::kHostOut, {word == "hout" ? n_ : 64});
    } else if (word == "null") {
      add(Kind::kNull);
    } else if (word == "region") {
      add(Kind::kRegion, {region_});
    } else if (word == "attr") {
      static constexpr int kAttributes[] = {1, 2, 2, 3, 4, 6, 7, 8, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 99};
      const int which = kAttributes[random_.below(static_cast<int64_t>(std::size(kAttributes)))];
      add(Kind::kOutAttribute, {which});
      add(Kind::kInt, {which});
    } else if (word == "attrs") {
      add(Kind::kInt, {4});
      add(Kind::kOutAttribute, {-1});
      add(Kind::kOutAttribute, {-2});
    } else if (word == "at") {
      return take_at();
    } else if (word == "bind") {
      Arg arg = bind_;
      arg.hidden = true;
      call_.args.push_back(arg);
    } else if (word.substr(0, 8) == "partner:") {
      add(Kind::kPartner, {number(word.substr(8)), random_.below(1000)});
    } else if (word == "deps" || word == "ndeps") {
      add(word == "deps" ? Kind::kDeps : Kind::kDepCount);
    } else if (word == "kernel") {
      return take_kernel();
    } else if (word == "kernel0") {
      which_ = words_ = 0;
      add(Kind::kFunction, {0});
    } else if (word == "kp") {
      add(Kind::kParams, {which_, words_, random_.below(1000)});
    } else if (word == "float") {
      add(Kind::kFloat, {random_.below(4) * 500});
    } else if (word == "hostfn" || word == "callback" || word == "hostcount") {
      add(Kind::kName, {word == "hostfn" ? 101 : word == "callback" ? 102 : 103});
    } else if (word.substr(0, 6) == "range:") {
      word.remove_prefix(6);
      const int64_t low = number(take(word, ':'));
      add(Kind::kInt, {low + random_.below(number(word) - low)});
    } else if (word.substr(0, 5) == "name:") {
      static constexpr Word kNameWords[kNames] = {"ptx", "nofile", "badimage", "kernel", "nokernel", "nofolder", "entry"};
      for (int i = 0; i < kNames; ++i) {
        if (word.substr(5) == kNameWords[i]) {
          add(Kind::kName, {i});
        }
      }
    } else {
      std::abort();  // a word of the table that nobody understands
    }
    return true;
  }

  // A free piece of a reservation, and the memory that will be there.
  bool take_at() {
    const int slot = pick_object('r', {}, false);
    if (slot < 0) {
      return false;
    }
    uint32_t used = 0;
    int free_slot = -1;
    for (int i = 0; i < kMemorySlots; ++i) {
      const Memory& m = memory_[static_cast<size_t>(i)];
      if (m.live && m.reservation >= 0 && m.reservation / 8 == slot) {
        used |= 1u << (m.reservation % 8);
      }
      if (!m.live && i != freed_) {
        free_slot = i;
      }
    }
    const int64_t piece = random_.below(kReservationBytes / kGranule);
    if ((used >> piece & 1) != 0 || free_slot < 0) {
      return false;
    }
    add(Kind::kAt, {slot, piece * kGranule});
    bind_ = arg_of(Kind::kBind, {free_slot, kMemVmm, kGranule, slot, piece});
    return true;
  }
};

}  // namespace conformance::plans
