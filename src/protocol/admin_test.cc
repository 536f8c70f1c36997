#include "protocol/admin.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace nvshare::protocol::admin {
namespace {

template <typename T>
T accepted(const char* line) {
  auto request = decode_request(line);
  EXPECT_TRUE(request) << (request ? "" : request.error().text);
  return request && std::holds_alternative<T>(*request) ? std::get<T>(*request) : T{};
}

std::string refused(const std::string& line) {
  auto request = decode_request(line);
  return request ? "accepted" : request.error().text;
}

TEST(Admin, RequestsComeBackAsTheyWereSent) {
  auto tenant = accepted<TenantRequest>(encode(TenantRequest{12, "train", 1 << 30}).c_str());
  EXPECT_EQ(tenant.pid, 12);
  EXPECT_EQ(tenant.name, "train");
  EXPECT_EQ(tenant.gpu_memory_limit, 1 << 30);
  auto set = accepted<SetRequest>(encode(SetRequest{{{"switch_time_mode", "fixed"}}, "train", 5, 40}).c_str());
  EXPECT_EQ(set.settings.at("switch_time_mode"), "fixed");
  EXPECT_EQ(set.tenant, "train");
  EXPECT_EQ(set.gpu_memory_limit, 5);
  EXPECT_FALSE(set.priority);
  EXPECT_EQ(accepted<SetRequest>(encode(SetRequest{{}, "train", {}, {}, -7}).c_str()).priority, -7);
  EXPECT_EQ(accepted<SetRequest>(encode(SetRequest{{}, "train", {}, {}, {}, 60}).c_str()).gpu_core_ceiling, 60);
  EXPECT_EQ(accepted<TenantRequest>(encode(TenantRequest{12, "train", 0, true, 100, 9, 0, 70}).c_str()).gpu_core_ceiling, 70);
  EXPECT_EQ(accepted<TenantRequest>(encode(TenantRequest{12, "train", 0, true, 100, 9}).c_str()).priority, 9);
  EXPECT_EQ(accepted<TenantRequest>(encode(TenantRequest{12, "train", 0, true, 100, 0, 5, 100, {"GPU-1"}}).c_str()).gpus,
            std::vector<std::string>{"GPU-1"});
  EXPECT_EQ(refused(R"({"request":"tenant","pid":9,"gpus":["GPU-1",2]})"), "gpus must be a list of UUIDs");
  EXPECT_TRUE(std::holds_alternative<StatusRequest>(*decode_request(encode(StatusRequest{}))));
  const auto viewers = accepted<StatusRequest>(encode(StatusRequest{17, 1000, 300}).c_str());
  EXPECT_EQ(viewers.changes, 17u);
  EXPECT_EQ(viewers.within_ms, 1000);
  EXPECT_EQ(viewers.early_ms, 300);
  EXPECT_FALSE(viewers.brief);
  EXPECT_TRUE(accepted<StatusRequest>(encode(StatusRequest{17, 1000, 300, true}).c_str()).brief);
  EXPECT_TRUE(accepted<StatusRequest>(encode(StatusRequest{.brief = true}).c_str()).brief);
  EXPECT_TRUE(std::holds_alternative<ShutdownRequest>(*decode_request(encode(ShutdownRequest{}))));
}

TEST(Admin, ATurnComesBackAsItWasAskedAndAnswered) {
  EXPECT_EQ(accepted<TurnRequest>(encode(TurnRequest{12}).c_str()).tenant, 12u);
  EXPECT_NE(refused(R"({"request":"turn","tenant":-1})"), "accepted");
  const auto turn = decode_turn(encode_turn({true, 5, 2, "train", "running", 7, 3, 11, 5000}));
  ASSERT_TRUE(turn);
  EXPECT_TRUE(turn->waits);
  EXPECT_EQ(turn->waited_ns, 5);
  EXPECT_EQ(turn->gpu, 2u);
  EXPECT_EQ(turn->holder, "train");
  EXPECT_EQ(turn->state, "running");
  EXPECT_EQ(turn->held_ns, 7);
  EXPECT_EQ(turn->others, 3u);
  EXPECT_EQ(turn->left_ns, 11);
  EXPECT_EQ(turn->again_ms, 5000);
  EXPECT_FALSE(decode_turn(encode_ok()));
  EXPECT_FALSE(decode_turn(encode_error("no")));
}

TEST(Admin, PodsComeBackAsTheyWereSent) {
  auto pods = accepted<PodsRequest>(
      encode(PodsRequest{{{"0b4e-1", "team/train", 5, 40, false},
                          {"77aa", "", 0, 100, true},
                          {"88", "x/y", 0, 100, false, -3, true, {{"GPU-a", 7}, {"GPU-b", 0}}, true, 30, "77aa", "turns", 20}},
                         true})
          .c_str());
  ASSERT_EQ(pods.pods.size(), 3u);
  EXPECT_EQ(pods.pods[0].priority, 0);
  EXPECT_FALSE(pods.pods[0].ends);
  EXPECT_EQ(pods.pods[2].priority, -3);
  EXPECT_EQ(pods.pods[2].gpu_core_reserved, 30);
  EXPECT_EQ(pods.pods[0].gpu_core_reserved, 0);
  EXPECT_TRUE(pods.pods[2].ends);
  EXPECT_TRUE(pods.pods[2].only_lowers);
  EXPECT_EQ(pods.pods[2].member_of, "77aa");
  EXPECT_EQ(pods.pods[0].member_of, "");
  EXPECT_EQ(pods.pods[2].sharing, "turns");
  EXPECT_EQ(pods.pods[2].turn_seconds, 20);
  EXPECT_EQ(pods.pods[0].sharing, "node");
  EXPECT_EQ(pods.pods[0].turn_seconds, 0);
  EXPECT_FALSE(pods.pods[0].only_lowers);
  EXPECT_TRUE(pods.pods[0].gpu_memory_on.empty());
  EXPECT_EQ(pods.pods[2].gpu_memory_on, (std::map<std::string, int64_t>{{"GPU-a", 7}, {"GPU-b", 0}}));
  EXPECT_EQ(pods.pods[0].uid, "0b4e-1");
  EXPECT_EQ(pods.pods[0].name, "team/train");
  EXPECT_EQ(pods.pods[0].gpu_memory_limit, 5);
  EXPECT_EQ(pods.pods[0].gpu_core_limit, 40);
  EXPECT_TRUE(pods.pods[1].gone);
  EXPECT_TRUE(pods.complete);
  EXPECT_EQ(pods.list, PodsRequest::List::kNone);
  for (const auto list : {PodsRequest::List::kFirst, PodsRequest::List::kNone, PodsRequest::List::kLast}) {
    EXPECT_EQ(accepted<PodsRequest>(encode(PodsRequest{{}, false, list}).c_str()).list, list);
  }
  PodRequest large{"0b4e6a2c-31d7-4f6e-9c05-7a1b2c3d4e5f", std::string(kPodNameBytesMax, 'n'), INT64_MAX, 100, false, -100, true, {}, true};
  for (size_t i = 0; i < kGpusOfPodMax; ++i) {
    large.gpu_memory_on["GPU-0b4e6a2c-31d7-4f6e-9c05-7a1b2c3d4" + std::to_string(100 + i)] = int64_t{1} << 48;
  }
  const std::string most = encode(PodsRequest{std::vector<PodRequest>(kPodsMax, large), true});
  EXPECT_LE(most.size(), kRequestBytesMax) << "as many as are accepted must fit a line";
}

TEST(Admin, AcceptsWhatPeopleType) {
  EXPECT_EQ(accepted<SetRequest>(R"({"request":"set","tenant":7,"gpu_memory_limit":"8Gi"})").gpu_memory_limit, 8LL << 30);
  EXPECT_EQ(accepted<SetRequest>(R"({"request":"set","tenant":7,"gpu_memory_limit":0})").tenant, "7");
  EXPECT_EQ(accepted<SetRequest>(R"({"request":"set","settings":{"switch_time_fixed":0.5}})").settings.at("switch_time_fixed"), "0.5");
  EXPECT_EQ(accepted<TenantRequest>(R"({"request":"tenant","pid":9,"later_field":true})").pid, 9);
}

// What is parsed is written and copied by recursion: a line of a million brackets ended the program that read it.
TEST(Admin, ALineThatNestsDeepIsRefused) {
  const std::string deep(1'000'000, '[');
  EXPECT_NE(refused(R"({"request":"set","settings":{"a":)" + deep + std::string(deep.size(), ']') + "}}").find("nests"), std::string::npos);
  EXPECT_FALSE(decode_status(R"({"ok":true,"a":)" + deep + std::string(deep.size(), ']') + "}"));
  EXPECT_NE(
      refused(R"({"request":"reboot","a":"\\\"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[["})").find("reboot"),
      std::string::npos)
      << "brackets in texts are no nesting";
}

TEST(Admin, RefusalsNameTheField) {
  EXPECT_NE(refused("").find("JSON object"), std::string::npos);
  EXPECT_NE(refused("[1]").find("JSON object"), std::string::npos);
  EXPECT_NE(refused("{}").find("accepted: status"), std::string::npos);
  EXPECT_NE(refused(R"({"request":"reboot"})").find("reboot"), std::string::npos);
  EXPECT_NE(refused(R"({"request":"tenant"})").find("pid"), std::string::npos);
  EXPECT_NE(refused(R"({"request":"status","brief":1})").find("brief"), std::string::npos);
  EXPECT_NE(refused(R"({"request":"tenant","pid":0})").find("pid"), std::string::npos);
  EXPECT_NE(refused(R"({"request":"tenant","pid":1,"name":5})").find("name"), std::string::npos);
  EXPECT_NE(refused(R"({"request":"tenant","pid":1,"gpu_memory_limit":-1})").find("gpu_memory_limit"), std::string::npos);
  EXPECT_NE(refused(R"({"request":"tenant","pid":1,"gpu_memory_limit":"much"})").find("much"), std::string::npos);
  EXPECT_NE(refused(R"({"request":"set"})").find("set needs"), std::string::npos);
  EXPECT_NE(refused(R"({"request":"set","tenant":"a"})").find("gpu_memory_limit"), std::string::npos);
  EXPECT_NE(refused(R"({"request":"set","settings":3})").find("settings"), std::string::npos);
  EXPECT_NE(refused(R"({"request":"set","priority":3})").find("priority needs a tenant"), std::string::npos);
  EXPECT_NE(refused(R"({"request":"set","tenant":"a","priority":101})").find("-100 to 100"), std::string::npos);
  EXPECT_NE(refused(R"({"request":"tenant","pid":1,"priority":"high"})").find("priority"), std::string::npos);
  EXPECT_NE(refused(R"({"request":"pods","pods":[{"uid":"a","ends":1}]})").find("ends"), std::string::npos);
  EXPECT_NE(refused(R"({"request":"pods","pods":[{"uid":"a","gpu_memory_on":3}]})").find("gpu_memory_on"), std::string::npos);
  EXPECT_NE(refused(R"({"request":"pods","pods":[{"uid":"a","gpu_memory_on":{"GPU-a":"much"}}]})").find("GPU-a"), std::string::npos);
  for (const char* member_of : {R"("../x")", R"("a")", R"("")", "7"}) {
    const std::string line = std::string(R"({"request":"pods","pods":[{"uid":"a","member_of":)") + member_of + "}]}";
    EXPECT_NE(refused(line.c_str()).find("member_of must be another pod's uid"), std::string::npos) << line;
  }
  EXPECT_NE(refused(R"({"request":"pods","pods":[{"uid":"a","sharing":"mps"}]})").find("node, together, turns or auto"), std::string::npos);
  EXPECT_NE(refused(R"({"request":"pods","pods":[{"uid":"a","turn_seconds":3601}]})").find("0 to 3600"), std::string::npos);
  EXPECT_NE(refused(R"({"request":"pods"})").find("pods"), std::string::npos);
  EXPECT_NE(refused(R"({"request":"pods","pods":[3]})").find("uid"), std::string::npos);
  EXPECT_NE(refused(R"({"request":"pods","pods":[{"uid":"../x"}]})").find("uid"), std::string::npos);
  EXPECT_NE(refused(R"({"request":"pods","pods":[{"uid":"a","gpu_core_limit":101}]})").find("gpu_core_limit"), std::string::npos);
  EXPECT_NE(refused(R"({"request":"pods","pods":[{"uid":"a","gpu_core_reserved":101}]})").find("0 (none) to 100"), std::string::npos);
  EXPECT_NE(refused(R"({"request":"set","tenant":"a","gpu_core_ceiling":0})").find("gpu_core_ceiling"), std::string::npos);
  EXPECT_EQ(accepted<PodsRequest>(R"({"request":"pods","pods":[{"uid":"a","gpu_core_limit":20,"gpu_core_reserved":50}]})")
                .pods[0]
                .gpu_core_reserved,
            20);
  EXPECT_NE(refused(R"({"request":"pods","pods":[{"uid":"a","gpu_memory_limit":"x"}]})").find("gpu_memory_limit"), std::string::npos);
  EXPECT_NE(refused(R"({"request":"pods","pods":[],"complete":1})").find("complete"), std::string::npos);
  EXPECT_NE(refused(R"({"request":"pods","pods":[],"list":"next"})").find("first or last"), std::string::npos);
  EXPECT_NE(refused(R"({"request":"pods","pods":[],"list":1})").find("first or last"), std::string::npos);
  EXPECT_NE(refused(std::string(kRequestBytesMax + 1, ' ')).find("accepted: up to"), std::string::npos);
}

TEST(Admin, AStatusReportComesBackAsItWasSent) {
  StatusReport report;
  report.version = "1";
  report.gpus.push_back({.uuid = "GPU-1", .name = "card", .total = 5, .told = true, .foreign = 3, .nvml = true, .bandwidth_out = 1.5});
  report.tenants.push_back({.id = 4, .name = "train", .kind = "run"});
  report.clients.push_back(
      {.id = 9, .pid = 1, .program = "py\xff", .tenant = 4, .gpu = "GPU-1", .state = "waiting", .waiting_for = "its turn"});
  auto decoded = decode_status(encode(report));
  ASSERT_TRUE(decoded) << decoded.error().text;
  ASSERT_EQ(decoded->gpus.size(), 1u);
  EXPECT_TRUE(decoded->gpus[0].told);
  EXPECT_EQ(decoded->gpus[0].bandwidth_out, 1.5);
  ASSERT_EQ(decoded->clients.size(), 1u);
  EXPECT_EQ(decoded->clients[0].waiting_for, "its turn");
  EXPECT_EQ(decoded->clients[0].program, "py\xef\xbf\xbd");
  EXPECT_EQ(decoded->tenants[0].kind, "run");
}

// Texts are looked at several bytes at a time, and written in pieces.
TEST(Admin, AnyByteAnywhereInATextComesBack) {
  StatusReport report;
  for (int byte = 0; byte < 0x80; ++byte) {
    for (size_t length = 1; length <= 17; ++length) {
      for (size_t at = 0; at < length; ++at) {
        std::string& program = report.clients.emplace_back().program;
        program.assign(length, 'a');
        program[at] = static_cast<char>(byte);
      }
    }
  }
  report.clients.emplace_back().program = std::string(100'000, 'b');
  const auto decoded = decode_status(encode(report));
  ASSERT_TRUE(decoded) << decoded.error().text;
  ASSERT_EQ(decoded->clients.size(), report.clients.size());
  for (size_t i = 0; i < report.clients.size(); ++i) ASSERT_EQ(decoded->clients[i].program, report.clients[i].program) << i;
}

TEST(Admin, AStatusReportIsJsonWhateverItSays) {
  StatusReport report;
  report.runtime_dir = "\"a\\b\"\n\t\x01{[,";
  report.uptime_ns = INT64_MIN;
  report.epoch = UINT64_MAX;
  report.since = 3;
  report.there = {1, UINT64_MAX};
  report.bounds.values = {{"one", -1}, {"two", INT64_MAX}};
  report.gpus.resize(2);
  report.gpus[0].name = "\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80";
  report.gpus[0].bandwidth_out = 1.0 / 3;
  report.gpus[0].bandwidth_in = 1e300;
  report.gpus[1].nvml_others = -1;
  report.tenants.resize(1);
  report.tenants[0].compute.resize(2);
  report.tenants[0].usage.resize(1);
  report.tenants[0].usage[0].unmoved = 7;
  const std::string line = encode(report);
  EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1) << "one line";
  const auto decoded = decode_status(line);
  ASSERT_TRUE(decoded) << decoded.error().text << "\n" << line;
  EXPECT_EQ(decoded->runtime_dir, report.runtime_dir);
  EXPECT_EQ(decoded->uptime_ns, INT64_MIN);
  EXPECT_EQ(decoded->epoch, UINT64_MAX);
  EXPECT_EQ(decoded->there, report.there);
  EXPECT_EQ(decoded->bounds.values, report.bounds.values);
  EXPECT_EQ(decoded->gpus[0].name, report.gpus[0].name);
  EXPECT_EQ(decoded->gpus[0].bandwidth_out, 1.0 / 3);
  EXPECT_EQ(decoded->gpus[0].bandwidth_in, 1e300);
  EXPECT_EQ(decoded->gpus[1].nvml_others, -1);
  EXPECT_EQ(decoded->tenants[0].compute.size(), 2u);
  EXPECT_EQ(decoded->tenants[0].usage[0].unmoved, 7);
  EXPECT_NE(line.find("\"nvml_others\":-1.0"), std::string::npos) << "what may have a fraction shows it";
  EXPECT_EQ(encode(StatusReport()).find("\"there\""), std::string::npos) << "for viewers that wait alone";
}

TEST(Admin, ABriefReportSaysTheSame) {
  StatusReport report;
  report.epoch = 7;
  report.gpus = {{.uuid = "GPU-1", .nvml_others = 0, .usage = {.turns = 3}}, {.uuid = "GPU-2", .sharing = ""}};
  report.tenants = {
      {.id = 1, .memory = {{.gpu = "GPU-1"}, {.limit = 5}}, .gpu_core_limit = 0, .compute = {{.quota = 0}, {}}, .usage = {{}}},
      {.sharing = "turns"}};
  report.clients.resize(3);
  report.clients[0].protocol = 0;
  report.clients[0].drainable = false;
  report.clients[1].turns = 9;
  report.clients[1].waiting_for = "its turn";
  report.bounds.values = {{"one", 0}};
  for (const uint64_t since : {uint64_t{0}, uint64_t{2}}) {
    report.since = since;
    report.there = {1, 2, 3};
    const std::string whole = encode(report), brief = encode(report, true);
    const auto decoded = decode_status(brief);
    ASSERT_TRUE(decoded) << decoded.error().text << "\n" << brief;
    EXPECT_EQ(encode(*decoded), whole);
    EXPECT_LT(3 * brief.size(), whole.size());
    EXPECT_NE(brief.find(R"("clients":[{"drainable":false,"protocol":0},{"waiting_for":"its turn","turns":9},{}])"), std::string::npos)
        << brief;
  }
}

TEST(Admin, AReportWrittenInStepsIsTheSame) {
  StatusReport report;
  report.tenants.resize(2);
  report.changes = 9;
  for (const size_t clients : {0, 1, 7}) {
    report.clients.resize(clients);
    for (size_t i = 0; i < clients; ++i) report.clients[i].program = std::string(i * 7'000, 'x');
    for (const bool brief : {false, true}) {
      for (size_t first = 0; first <= clients; ++first) {
        for (size_t second = first; second <= clients; ++second) {
          StatusText text(brief, 0);
          text.add(std::span(report.clients).first(first));
          text.add(std::span(report.clients).subspan(first, second - first));
          EXPECT_EQ(text.clients(), second);
          EXPECT_EQ(text.finish(report), encode(report, brief)) << first << ", then " << second << " of " << clients;
        }
      }
    }
  }
}

// Who reads brief reports has the defaults of another release: none but these is anything but nothing, for good.
TEST(Admin, DefaultsOfAReportNeverChange) {
  StatusReport report;
  report.gpus.resize(1);
  report.tenants.resize(1);
  report.tenants[0].memory.resize(1);
  report.tenants[0].compute.resize(1);
  report.tenants[0].usage.resize(1);
  report.clients.resize(1);
  report.bypasses.resize(1);
  report.mps.resize(1);
  const std::string all = encode(report);
  std::string odd;
  for (size_t at = all.find(':'); at != std::string::npos; at = all.find(':', at + 1)) {
    const size_t name = all.find_last_of(",{", at) + 1;
    const std::string value = all.substr(at + 1, all.find_first_of(",}]", at) - at - 1);
    if (value == "0" || value == "0.0" || value == "false" || value == "\"\"" || value[0] == '[' || value[0] == '{') continue;
    odd += all.substr(name, at + 1 + value.size() - name) + " ";
  }
  EXPECT_EQ(odd, R"("ok":true "drainable":true "protocol":1 "gpu_core_limit":100 )"
                 R"("quota":100.0 "nvml_share":-1.0 "nvml_billed":-1.0 "sharing":"node" "nvml_others":-1.0 "sharing":"together" )");
}

// Found by admin_fuzz: read as an integer such a number has no defined result.
TEST(Admin, ANumberBeyond64BitsInAnAnswerIsRefusedByName) {
  for (const char* number : {"44444444444444444444444444", "-1e19", "0.5"}) {
    const auto status = decode_status(std::string(R"({"ok":true,"gpus":[{"total":)") + number + "}]}");
    ASSERT_FALSE(status) << number;
    EXPECT_NE(std::string(status.error().text).find("'total'"), std::string::npos) << status.error().text;
  }
  StatusReport report;
  GpuReport gpu;
  gpu.nvml_others = 0.5, gpu.bandwidth_out = 5.5e10 + 0.5, gpu.bandwidth_in = 1.5;
  report.gpus.push_back(gpu);
  TenantReport tenant;
  report.tenants.push_back(tenant);
  EXPECT_TRUE(decode_status(encode(report))) << "these have fractions";
}

TEST(Admin, RepliesCarryTheirError) {
  EXPECT_TRUE(decode_ok(encode_ok()));
  EXPECT_EQ(*decode_tenant(encode_tenant(3)), 3u);
  EXPECT_STREQ(decode_status(encode_error("not yours")).error().text, "not yours");
  EXPECT_FALSE(decode_ok("garbage"));
  EXPECT_FALSE(decode_tenant(encode_ok()));
  EXPECT_FALSE(decode_status(R"({"ok":true,"gpus":3})"));
}

}  // namespace
}  // namespace nvshare::protocol::admin
