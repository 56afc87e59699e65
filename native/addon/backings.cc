// Backings: opened, resized and closed on worker threads, because files and devices may block.
#include "addon/async.h"
#include "addon/instance.h"

namespace nvmeof::addon {

namespace {

constexpr const char* kKinds[] = {"file", "block", "memory", "null"};

block::Options unpack(const Arguments& arguments) {
  const Argument options = arguments.at(0, "options");
  block::Options unpacked;
  unpacked.kind =
      static_cast<block::Kind>(options["kind"].word({"file", "block", "memory", "null"}));
  unpacked.path = options["path"].text_or("");
  unpacked.size = options["size"].u64_or(0);
  unpacked.block_size = options["blockSize"].u32();
  if (unpacked.block_size != 512 && unpacked.block_size != 4096) {
    options["blockSize"].out_of_range("512 or 4096");
  }
  unpacked.read_only = options["readOnly"].boolean_or(false);
  unpacked.shared = options["shared"].boolean_or(false);
  unpacked.cache = static_cast<block::Cache>(
      options["cache"].word_or(0, {"write-back", "write-through", "direct"}));
  unpacked.delay_writes_ms = options["delayWritesMs"].u32_or(0);
  return unpacked;
}

}  // namespace

Napi::Value open_backing(const Arguments& arguments) {
  const block::Options options = unpack(arguments);
  auto opened = std::make_shared<Backing>();
  return Async::run(
      arguments.env(),
      [options, opened]() -> Result<void> {
        auto backing = block::open_backing(options);
        if (!backing) return backing.error();
        opened->backing = std::move(*backing);
        return {};
      },
      [opened](Napi::Env env) {
        return Napi::Number::New(env, Instance::of(env).backings.add(opened));
      });
}

Napi::Value backing_info(const Arguments& arguments) {
  const Napi::Env env = arguments.env();
  const block::Backing& backing =
      *Instance::of(env).backings.get(env, arguments.at(0, "backing").u32())->backing;
  Napi::Object info = Napi::Object::New(env);
  info.Set("kind", kKinds[static_cast<size_t>(backing.kind())]);
  info.Set("size", Napi::BigInt::New(env, backing.size()));
  info.Set("blockSize", Napi::Number::New(env, backing.block_size()));
  info.Set("readOnly", Napi::Boolean::New(env, backing.read_only()));
  info.Set("volatileWriteCache", Napi::Boolean::New(env, backing.volatile_write_cache()));
  info.Set("canDeallocate", Napi::Boolean::New(env, backing.can_deallocate()));
  info.Set("marks", Napi::Boolean::New(env, backing.marks()));
  info.Set("description", backing.describe());
  return info;
}

Napi::Value resize_backing(const Arguments& arguments) {
  const Napi::Env env = arguments.env();
  const std::shared_ptr<Backing> backing =
      Instance::of(env).backings.get(env, arguments.at(0, "backing").u32());
  const uint64_t size = arguments.at(1, "size").u64();
  return Async::run(
      env, [backing, size] { return backing->backing->resize(size); },
      [](Napi::Env done) { return done.Undefined(); });
}

Napi::Value set_mark(const Arguments& arguments) {
  const Napi::Env env = arguments.env();
  block::Backing& backing =
      *Instance::of(env).backings.get(env, arguments.at(0, "backing").u32())->backing;
  const auto done =
      backing.set_mark(arguments.at(1, "mark").u64(), arguments.at(2, "on").boolean());
  if (!done) throw_error(env, done.error());
  return env.Undefined();
}

Napi::Value marked_elsewhere(const Arguments& arguments) {
  const Napi::Env env = arguments.env();
  const block::Backing& backing =
      *Instance::of(env).backings.get(env, arguments.at(0, "backing").u32())->backing;
  const auto marked = backing.marked_elsewhere(arguments.at(1, "mark").u64());
  if (!marked) throw_error(env, marked.error());
  return Napi::Boolean::New(env, marked.value());
}

Napi::Value close_backing(const Arguments& arguments) {
  const Napi::Env env = arguments.env();
  Instance& instance = Instance::of(env);
  const uint32_t id = arguments.at(0, "backing").u32();
  std::shared_ptr<Backing> backing = instance.backings.get(env, id);
  if (backing->references != 0) {
    throw_error(env, {EBUSY, "backing " + std::to_string(id) + " (" + backing->backing->describe() +
                                 ") is still in a namespace table; remove it there first"});
  }
  instance.backings.erase(id);
  return Async::run(
      env,
      [backing = std::move(backing)]() mutable -> Result<void> {
        backing.reset();
        return {};
      },
      [](Napi::Env done) { return done.Undefined(); });
}

}  // namespace nvmeof::addon
