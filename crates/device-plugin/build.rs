//! Makes the messages and services of kubelet's device plugin API from `proto/`, without a protobuf compiler on the host.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    tonic_prost_build::configure()
        .build_transport(false)
        .btree_map(".")
        .generate_default_stubs(true)
        .compile_fds(protox::compile(["proto/v1beta1.proto"], ["proto"])?)?;
    Ok(())
}
