//! What each side does when the other does not say what it should.

use tokio::io::AsyncWriteExt;

use super::*;

fn channels() -> (Channel, Channel) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    (Channel::new(ours).unwrap(), Channel::new(theirs).unwrap())
}

/// A process that has the path for itself, in a folder of its own.
async fn first() -> (tempfile::TempDir, PathBuf, Takeover) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("takeover");
    let (takeover, _) = Takeover::begin(&path).await.unwrap();
    (folder, path, takeover)
}

fn nothing() -> Offer {
    Offer {
        sockets: Vec::new(),
        hop_secret: None,
    }
}

async fn take_over(path: &Path) -> Result<Option<Channel>, String> {
    let begun = Takeover::begin(path).await;
    let ready = async { begun?.0.ready().await };
    ready.await.map_err(|error| error.to_string())
}

/// Connects without beginning to take over, and reads the offer.
async fn offered(path: &Path) -> Channel {
    let mut channel = Channel::new(UnixStream::connect(path).await.unwrap()).unwrap();
    let offer = channel.next().await.unwrap();
    assert!(matches!(offer, Some(Message::Offer { .. })), "{offer:?}");
    channel
}

async fn refused(channel: &mut Channel, piece: &str) -> bool {
    let said = channel.next().await.unwrap();
    matches!(said, Some(Message::Refused(why)) if why.contains(piece))
}

#[tokio::test(start_paused = true)]
async fn only_an_acknowledged_process_or_one_that_is_alone_serves() {
    let (_folder, _path, mut new) = first().await;
    for (said, why) in [
        (Some(Message::Acknowledged), Ok(true)),
        (Some(Message::Refused("it is late".into())), Err("is late")),
        (Some(Message::Ready(1)), Err("Ready")),
        // Time passes by itself.
        (None, Err("acknowledged nothing")),
    ] {
        let (channel, mut old) = channels();
        if let Some(said) = said {
            old.send(&said, &[]).await.unwrap();
        }
        new.predecessor = Some(channel);
        match (new.ready().await, why) {
            (Ok(taken), Ok(is_taken)) => assert_eq!(taken.is_some(), is_taken),
            (Err(error), Err(why)) => assert!(error.to_string().contains(why), "{error}"),
            (ready, why) => panic!("{ready:?}, not {why:?}"),
        }
    }
    new.predecessor = Some(channels().0);
    assert!(matches!(new.ready().await, Ok(None)));
}

#[tokio::test]
async fn a_successor_gets_every_socket_and_what_hops_are_known_by() {
    let (_folder, path, mut old) = first().await;
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    // More than go with one message.
    let sockets = (0..300).map(|n| ListenSocket::new(&format!("worker {n}"), any, None).unwrap());
    let sockets: Vec<_> = sockets.collect();
    let addresses: Vec<_> = sockets.iter().map(|socket| socket.address).collect();
    let offer = || Offer {
        sockets: sockets.clone(),
        hop_secret: Some("sixteen bytes of it".into()),
    };
    let taking = async {
        let (mut new, inherited) = Takeover::begin(&path).await.unwrap();
        let predecessor = new.ready().await.unwrap();
        (new, inherited, predecessor)
    };
    let ((successor, open), (new, mut taken, predecessor)) =
        tokio::join!(old.handed_over(offer), taking);
    assert_eq!(successor, std::process::id());
    // Some by their address, the others, for whom any will do, by their name.
    for (n, address) in addresses.into_iter().enumerate() {
        let at = if n % 2 == 0 { address } else { any };
        let socket = taken.claim(&format!("worker {n}"), at).unwrap();
        assert_eq!(socket.local_addr().unwrap(), address);
    }
    assert!(taken.claim("worker 0", any).is_none(), "it is taken");
    assert_eq!(taken.hop_secret, Some("sixteen bytes of it".into()));
    let shown = format!("{taken:?}");
    assert!(!shown.contains("sixteen"), "{shown}");
    // The next one asks at the same socket, whoever has been first.
    drop(old);
    let mut asks = Channel::new(UnixStream::connect(&path).await.unwrap()).unwrap();
    drop(new);
    assert!(matches!(asks.next().await, Ok(None)));
    let ended = predecessor.unwrap().ended();
    drop(open);
    ended.await;
}

#[tokio::test(start_paused = true)]
async fn the_old_process_goes_on_unless_the_new_one_says_ready_and_lives() {
    let (_folder, path, mut old) = first().await;
    let asks = async {
        drop(offered(&path).await);
        let mut confused = offered(&path).await;
        confused.send(&Message::Acknowledged, &[]).await.unwrap();
        assert!(refused(&mut confused, "said Acknowledged").await);
        // One that is silent keeps nobody out, and must not serve.
        let mut silent = offered(&path).await;
        let next = take_over(&path).await;
        assert!(matches!(next, Ok(Some(_))), "{next:?}");
        assert!(refused(&mut silent, "another process").await);
    };
    let ((successor, _open), ()) = tokio::join!(old.handed_over(nothing), asks);
    assert_eq!(successor, std::process::id());
}

#[tokio::test]
async fn a_change_refuses_who_was_offered_the_sockets_and_is_not_ready() {
    let (_folder, path, mut old) = first().await;
    let mut asks = Box::pin(offered(&path));
    let mut channel = tokio::select! {
        _ = old.handed_over(nothing) => panic!("to nobody"),
        channel = &mut asks => channel,
    };
    // It is ready before it hears of the change.
    channel.send(&Message::Ready(1), &[]).await.unwrap();
    old.withdraw("it has changed").await;
    assert!(refused(&mut channel, "it has changed").await);
    let (handed, taken) = tokio::join!(old.handed_over(nothing), take_over(&path));
    assert_eq!(handed.0, std::process::id());
    assert!(matches!(taken, Ok(Some(_))), "{taken:?}");
}

#[tokio::test]
async fn another_version_is_told() {
    let (new, mut old) = channels();
    let offer = br#"{"offer":{"version":4,"listeners":[],"hop_secret":null}}"#;
    old.stream
        .write_all(&[offer, &b"\n"[..]].concat())
        .await
        .unwrap();
    let asked = ask(Path::new("t"), new.stream).await;
    let why = asked.err().unwrap().to_string();
    assert!(why.contains("unknown variant `offer`"), "{why}");
    assert!(
        why.ends_with("; if it is of another version, end it first"),
        "{why}"
    );
}

#[tokio::test(start_paused = true)]
async fn only_a_dead_socket_at_the_path_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("takeover");
    let begin = async || {
        let begun = Takeover::begin(&path).await;
        begun.err().map(|error| error.to_string())
    };
    std::fs::write(&path, "precious").unwrap();
    let why = "is a file, not a socket; give another path";
    assert_eq!(begin().await.as_deref(), Some(why));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    std::fs::remove_file(&path).unwrap();
    // It is there, and slow.
    let listener = StdUnixListener::bind(&path).unwrap();
    assert_eq!(begin().await.as_deref(), Some(NO_ANSWER));
    StdUnixStream::connect(&path).unwrap();
    drop(listener);
    assert_eq!(begin().await, None);
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}
