use std::io::Write;
use std::os::unix::net::UnixListener;
use std::process::Command;

use rstest::rstest;

use super::*;

fn specs(texts: &[&str]) -> Vec<DescriptorSpec> {
    texts.iter().map(|text| parse(text).unwrap()).collect()
}

fn args(texts: &[&str]) -> Vec<OsString> {
    texts.iter().map(OsString::from).collect()
}

#[rstest]
#[case(&[], &["-m", "{}", "{fd"], "")]
#[case(&["a=/x", "b=/y"], &["x={fd:a},y={fd:b}{fd:a}"], "")]
#[case(&["a=/x"], &["-m"], "--fd a: no argument has {fd:a} in it")]
#[case(&["a=/x", "a=/y"], &["{fd:a}"], "--fd a: given twice")]
#[case(&["a=/x"], &["{fd:a}", "fd={fd:b}"], "argument fd={fd:b}: no --fd b=… is given")]
#[case(&["a=/x"], &["{fd:a"], "argument {fd:a: {fd: has no } after it")]
fn names_in_arguments_and_options_are_the_same(#[case] given: &[&str], #[case] named: &[&str], #[case] error: &str) {
    let checked = check(&specs(given), &args(named)).map_or_else(|error| error.to_string(), |()| String::new());
    assert_eq!(checked, error);
}

#[test]
fn arguments_need_not_be_text() {
    let odd = OsString::from_vec(b"\xff{fd:a}\xfe".to_vec());
    let number = |name: &str| (name == "a").then(|| "7".to_owned());
    assert_eq!(replace_placeholders(&odd, number).unwrap().as_bytes(), b"\xff7\xfe");
}

proptest::proptest! {
    #[test]
    fn no_argument_is_too_odd(arg: Vec<u8>, text in "[{}fd:a]{0,12}") {
        for arg in [OsString::from_vec(arg), text.into()] {
            let _ = replace_placeholders(&arg, |_| Some("1".into()));
        }
    }
}

/// A child that was started with them has them under the numbers in its arguments; one that is started later has none.
#[tokio::test]
async fn one_child_inherits_what_its_arguments_name_and_no_other_does() {
    let dir = tempfile::tempdir().unwrap();
    let (file, socket) = (dir.path().join("file"), dir.path().join("socket"));
    std::fs::write(&file, "").unwrap();
    let _listener = UnixListener::bind(&socket).unwrap();
    let specs = specs(&[
        &format!("file={}", file.display()),
        &format!("socket=socket:{}", socket.display()),
    ]);
    let opened = Descriptors::open(&specs).await.unwrap();
    let links = opened.numbered(&args(&["/proc/self/fd/{fd:file}", "/proc/self/fd/{fd:socket}"]));
    let links = links.unwrap();
    let output = || Command::new("readlink").args(&links).output().unwrap().stdout;
    let heir = String::from_utf8(opened.inherited(|| Ok(output())).unwrap()).unwrap();
    let expected = format!("{}\nsocket:[", file.display());
    assert!(heir.starts_with(&expected), "{heir}");
    assert_eq!(output(), b"");
    // Nor where it could not be started.
    let failed = opened.inherited(|| Err::<(), _>(Error::Usage("no".into())));
    assert!(failed.is_err());
    assert_eq!(output(), b"");
}

#[rstest]
#[case("a=/none/at/all", "No such file")]
#[case("a=DIR/socket", "it is a socket: say socket:DIR/socket")]
#[case("a=socket:DIR/none", "No such file")]
#[case("a=socket:DIR/file", "Connection refused")]
#[case("a=DIR", "Is a directory")]
#[tokio::test]
async fn what_cannot_be_opened_is_named(#[case] spec: &str, #[case] cause: &str) {
    let dir = tempfile::tempdir().unwrap();
    let in_dir = |text: &str| text.replace("DIR", dir.path().to_str().unwrap());
    let _listener = UnixListener::bind(dir.path().join("socket")).unwrap();
    std::fs::File::create(dir.path().join("file"))
        .unwrap()
        .write_all(b"x")
        .unwrap();
    let spec = in_dir(spec);
    let error = Descriptors::open(&specs(&[&spec])).await.unwrap_err().to_string();
    let (_, what) = spec.split_once('=').unwrap();
    assert!(error.starts_with(&format!("open --fd a={what}: ")), "{error}");
    assert!(error.contains(&in_dir(cause)), "{error}");
}

/// Where the test may; elsewhere the error says at which step it may not. The interface ends with its descriptor.
#[tokio::test]
async fn a_tap_is_attached_to_its_interface() {
    match Descriptors::open(&specs(&["net=tap:steliatest0"])).await {
        Ok(opened) => {
            let number = opened.0[0].1.as_raw_fd();
            let told = std::fs::read_to_string(format!("/proc/self/fdinfo/{number}")).unwrap();
            assert!(told.contains("iff:\tsteliatest0"), "{told}");
            println!("attached");
        }
        Err(error) => {
            let error = error.to_string();
            println!("{error}");
            let step = ["TUNSETIFF: ", "open /dev/net/tun: "]
                .iter()
                .any(|step| error.contains(step));
            assert!(error.starts_with("open --fd net=tap:steliatest0: ") && step, "{error}");
        }
    }
}
