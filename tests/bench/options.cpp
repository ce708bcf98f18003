#include "bench/options.h"

#include <charconv>
#include <functional>

#include "base/error.h"
#include "base/text.h"

namespace hearth::bench {

namespace {

int64_t whole(const std::string& what, const std::string& value, int64_t low, int64_t high) {
  int64_t number = 0;
  const char* end = value.data() + value.size();
  const auto parsed = std::from_chars(value.data(), end, number);
  if (parsed.ec != std::errc() || parsed.ptr != end || number < low || number > high)
    fail_usage(what, " ", quoted(value), ", expected a whole number from ", low, " to ", high);
  return number;
}

void choose(const std::string& what, const std::string& value, const std::vector<std::string>& known) {
  for (const std::string& name : known)
    if (value == name) return;
  std::string list;
  for (const std::string& name : known)
    list += (list.empty() ? "" : name == known.back() ? " or " : ", ") + name;
  fail_usage(what, " ", quoted(value), ", expected ", list);
}

// One flag: how many values it takes and what they do.
struct Flag {
  std::string name, values, help;
  size_t count;
  std::function<void(Options&, const std::string* values)> apply;
};

const std::vector<Flag>& flags() {
  static const std::vector<Flag> all = {
      {"--device", "NAME", "auto, cpu, cuda or reference (default auto: a GPU if there is one)", 1,
       [](Options& o, const std::string* v) {
         choose("--device", *v, {"auto", "cpu", "cuda", "reference"});
         o.device = *v;
       }},
      {"--gemm", "ENGINE", "native, cublaslt or both (default): who computes matrix products on a GPU", 1,
       [](Options& o, const std::string* v) {
         choose("--gemm", *v, {"native", "cublaslt", "both"});
         o.gemm = *v;
       }},
      {"--precision", "TYPE", "bf16 or fp32 (default bf16 on a GPU, fp32 on a CPU)", 1,
       [](Options& o, const std::string* v) {
         choose("--precision", *v, {"bf16", "fp32"});
         o.precision = *v;
       }},
      {"--model", "NAME", "124M or 1558M: the shapes of GPT-2 (default 124M)", 1,
       [](Options& o, const std::string* v) {
         choose("--model", *v, {"124M", "1558M"});
         o.model = *v;
       }},
      {"--shape", "LIST",
       "what differs from the model: batch=8,context=512,channels=64,heads=4,layers=2,vocab=512", 1,
       [](Options& o, const std::string* v) { o.shape = *v; }},
      {"--filter", "REGEX", "only the cases whose \"name [shape]\" the expression matches somewhere", 1,
       [](Options& o, const std::string* v) { o.filter = *v; }},
      {"--threads", "N", "threads of the CPU (default 1; 0 = all cores)", 1,
       [](Options& o, const std::string* v) {
         o.threads = static_cast<int>(whole("--threads", *v, 0, 4096));
       }},
      {"--peak", "EDGE",
       "edge of the product that measures the ceiling (default 8192 on a GPU, 1024 on a CPU)", 1,
       [](Options& o, const std::string* v) { o.peak = whole("--peak", *v, 8, 65536); }},
      {"--json", "FILE", "also write the results there", 1,
       [](Options& o, const std::string* v) { o.json = *v; }},
      {"--quick", "", "5 short samples instead of 30", 0,
       [](Options& o, const std::string*) {
         o.effort = {5, 2e-4, 2e-3, 64};
       }},
      {"--list", "", "print the cases and measure nothing", 0,
       [](Options& o, const std::string*) { o.list = true; }},
      {"--compare", "OLD NEW", "compare two files that --json wrote", 2,
       [](Options& o, const std::string* v) {
         o.compare = {v[0], v[1]};
       }},
      {"--roofline", "", "print the tables of kernels/README.md", 0,
       [](Options& o, const std::string*) { o.roofline = true; }},
      {"--help", "", "this text", 0, [](Options& o, const std::string*) { o.help = true; }},
  };
  return all;
}

const Flag& find_flag(const std::string& name) {
  std::vector<std::string> names;
  for (const Flag& flag : flags()) {
    if (flag.name == name) return flag;
    names.push_back(flag.name);
  }
  const std::string close = nearest(name, names);
  fail_usage("unknown option ", quoted(name),
             close.empty() ? std::string("; see hearth-bench --help") : text("; did you mean ", close, "?"));
}

}  // namespace

Options parse(const std::vector<std::string>& arguments) {
  Options options;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const size_t equals = arguments[i].find('=');
    const bool joined = arguments[i].starts_with("--") && equals != std::string::npos;
    const Flag& flag = find_flag(joined ? arguments[i].substr(0, equals) : arguments[i]);
    std::vector<std::string> values;
    if (joined) values.push_back(arguments[i].substr(equals + 1));
    while (values.size() < flag.count && i + 1 < arguments.size())
      values.push_back(arguments[++i]);
    if (values.size() != flag.count)
      fail_usage(flag.name, " takes ", flag.count ? flag.values : "no value", "; see hearth-bench --help");
    flag.apply(options, values.data());
  }
  return options;
}

std::string help_text() {
  std::string lines =
      "hearth-bench measures every operation of a training step on one device.  Each is first compared with "
      "the\n"
      "reference; a wrong result gets no number.  Causal attention counts half of its products.\n\n"
      "  hearth-bench [OPTION...]\n\n";
  for (const Flag& flag : flags()) {
    const std::string left = flag.name + " " + flag.values;
    lines += "  " + left + std::string(left.size() < 22 ? 22 - left.size() : 1, ' ') + flag.help + "\n";
  }
  return lines;
}

StepShape shape_of(const Options& options, Precision precision, bool host) {
  StepShape s = step_shape(options.model, precision);
  if (host) s.batch = 1, s.logits_bytes = StageOptions::host_logits_bytes;
  for (size_t begin = 0; begin < options.shape.size();) {
    const size_t end = std::min(options.shape.find(',', begin), options.shape.size());
    const std::string item = options.shape.substr(begin, end - begin);
    const size_t equals = std::min(item.find('='), item.size());
    const std::string key = item.substr(0, equals);
    choose("--shape", key, {"batch", "context", "channels", "heads", "layers", "vocab"});
    const std::string value = equals < item.size() ? item.substr(equals + 1) : "";
    const int64_t number = whole("--shape " + key, value, 1, int64_t{1} << 24);
    int64_t& place = key == "batch"      ? s.batch
                     : key == "context"  ? s.model.context
                     : key == "channels" ? s.model.channels
                     : key == "heads"    ? s.model.heads
                     : key == "layers"   ? s.model.layers
                                         : s.model.vocab;
    place = number;
    s.name = "given";
    begin = end + 1;
  }
  validate(s.model);
  return s;
}

}  // namespace hearth::bench
