//! The settings of an SGLang server, by the names of an experiment's keys, as flags of `sglang.launch_server`. Pure.

/// Settings; what is `None` is SGLang's own choice.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sglang {
    /// A folder, or a name on the Hugging Face hub.
    pub model_path: String,
    /// The first GPU of the first server.
    pub gpu_id: u32,
    /// GPUs of each server; 0 is taken for 1.
    pub tp_size: u32,
    /// Servers that share their GPUs; 0 is taken for 1.
    pub servers_per_gpu: u32,
    /// Requests that run at once.
    pub max_running_requests: Option<u64>,
    /// Share of the GPU's memory for weights and KV cache.
    pub mem_fraction_static: Option<f64>,
    /// Prefills are cut into pieces of so many tokens; -1: never.
    pub chunked_prefill_size: Option<i64>,
    /// How much room is kept for what running requests may yet make.
    pub schedule_conservativeness: Option<f64>,
    /// The weights' quantization: `fp8`, …
    pub quantization: Option<String>,
    /// Whether torch.compile is used.
    pub enable_torch_compile: bool,
    /// Whether it measures: without it replies carry no times and there is no `/metrics`.
    pub enable_metrics: bool,
    /// Further flags, as they are. They come last, so that they win.
    pub more: Vec<String>,
}

impl Sglang {
    /// The flags of a server (counted from 0), without host and port. Each has GPUs of its own, or shares them with so many.
    pub fn flags(&self, server: usize) -> Vec<String> {
        let tp = self.tp_size.max(1);
        let place = server as u64 / u64::from(self.servers_per_gpu.max(1));
        let gpu = u64::from(self.gpu_id) + place * u64::from(tp);
        let given = |flag: &'static str, value: Option<String>| value.map(|value| (flag, value));
        let pairs = [
            given("--model-path", Some(self.model_path.clone())),
            given("--base-gpu-id", Some(gpu.to_string())),
            given("--tp-size", Some(tp.to_string())),
            given(
                "--max-running-requests",
                self.max_running_requests.map(|n| n.to_string()),
            ),
            given(
                "--mem-fraction-static",
                self.mem_fraction_static.map(|x| x.to_string()),
            ),
            given(
                "--chunked-prefill-size",
                self.chunked_prefill_size.map(|n| n.to_string()),
            ),
            given(
                "--schedule-conservativeness",
                self.schedule_conservativeness.map(|x| x.to_string()),
            ),
            given("--quantization", self.quantization.clone()),
        ];
        let switches = [
            ("--enable-torch-compile", self.enable_torch_compile),
            ("--enable-metrics", self.enable_metrics),
        ];
        let pairs = pairs
            .into_iter()
            .flatten()
            .flat_map(|(flag, value)| [flag.to_owned(), value]);
        let switches = switches
            .iter()
            .filter(|(_, is_on)| *is_on)
            .map(|(flag, _)| (*flag).to_owned());
        pairs
            .chain(switches)
            .chain(self.more.iter().cloned())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_is_its_flag_and_each_server_has_gpus_of_its_own() {
        let sglang = Sglang {
            model_path: "meta/llama".into(),
            gpu_id: 1,
            tp_size: 2,
            servers_per_gpu: 1,
            max_running_requests: Some(256),
            mem_fraction_static: Some(0.9),
            chunked_prefill_size: Some(-1),
            schedule_conservativeness: Some(0.5),
            quantization: Some("fp8".into()),
            enable_torch_compile: true,
            enable_metrics: true,
            more: vec!["--dtype".into(), "bfloat16".into()],
        };
        let flags = sglang.flags(3).join(" ");
        assert_eq!(
            flags,
            "--model-path meta/llama --base-gpu-id 7 --tp-size 2 --max-running-requests 256 --mem-fraction-static 0.9 \
             --chunked-prefill-size -1 --schedule-conservativeness 0.5 --quantization fp8 --enable-torch-compile \
             --enable-metrics --dtype bfloat16"
        );
        let least = Sglang {
            model_path: "m".into(),
            ..Sglang::default()
        };
        let shared = Sglang {
            servers_per_gpu: 2,
            ..least.clone()
        };
        let gpus: Vec<String> = (0..4).map(|n| shared.flags(n)[3].clone()).collect();
        assert_eq!(gpus, ["0", "0", "1", "1"]);
        assert_eq!(
            least.flags(2).join(" "),
            "--model-path m --base-gpu-id 2 --tp-size 1"
        );
    }
}
