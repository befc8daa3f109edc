//! What a takeover trusts, and what each side does when the other does not say what it should.

use super::*;

fn channels() -> (Channel, Channel) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    (Channel::new(ours).unwrap(), Channel::new(theirs).unwrap())
}

#[tokio::test]
async fn a_socket_is_where_it_is_said_to_be() {
    let check = |name: &str, configured: &str, fd: &OwnedFd| {
        let (name, configured) = (name.into(), configured.into());
        check(&Purpose { name, configured }, fd)
    };
    let fd: OwnedFd = StdListener::bind("127.0.0.1:0").unwrap().into();
    let port = SockRef::from(&fd).local_addr().unwrap();
    let port = port.as_socket().unwrap().port();
    assert!(check("listen", "127.0.0.1:0", &fd).is_ok());
    assert!(check("listen", &format!("127.0.0.1:{port}"), &fd).is_ok());
    for wrong in ["127.0.0.1:1", "127.0.0.2:0", "[::1]:0", "nonsense", ""] {
        let why = check("listen", wrong, &fd).unwrap_err();
        assert!(why.contains("is not at"), "{why}");
    }
    assert!(check(TAKEOVER, "", &fd).is_err(), "no Unix socket");
    let client = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    let why = check("listen", "127.0.0.1:0", &client.into()).unwrap_err();
    assert!(why.contains("does not listen"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn only_an_acknowledged_process_or_one_that_is_alone_serves() {
    let said = |message: Option<Message>| async {
        let (channel, mut old) = channels();
        if let Some(message) = message {
            old.send(&message).await.unwrap();
        }
        let ready = Takeover { channel }.ready().await;
        (ready, old)
    };
    let (taken, _old) = said(Some(Message::Acknowledged)).await;
    assert!(matches!(taken, Ok(Some(_))));
    let (taken, _old) = said(Some(Message::Refused("it took too long".into()))).await;
    assert!(taken.unwrap_err().contains("too long"));
    let (taken, _old) = said(Some(Message::Ready(1))).await;
    assert!(taken.unwrap_err().contains("Ready"));
    // Time passes by itself.
    let (taken, _old) = said(None).await;
    assert!(taken.unwrap_err().contains("acknowledged nothing"));
    let (channel, old) = channels();
    drop(old);
    assert!(matches!(Takeover { channel }.ready().await, Ok(None)));
}

#[tokio::test]
async fn another_version_is_told() {
    let (mut new, mut old) = channels();
    let offer = Listeners {
        version: VERSION + 1,
        listeners: Vec::new(),
        hop_secret: None,
    };
    old.send(&Message::Offer(offer)).await.unwrap();
    let why = inherited(&mut new).await.unwrap_err();
    assert!(
        why.contains("by version 4, this one takes over by 3"),
        "{why}"
    );
}

#[tokio::test]
async fn a_successor_gets_every_socket_and_what_hops_are_known_by() {
    let folder = tempfile::tempdir().unwrap();
    let takeover = StdUnixListener::bind(folder.path().join("takeover")).unwrap();
    let (mut new, mut old) = channels();
    // More than go with one message.
    let sockets = (0..300).map(|n| {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        ListenSocket::new(&format!("worker {n}"), any, None).unwrap()
    });
    let sockets: Vec<_> = sockets.collect();
    let addresses: Vec<_> = sockets.iter().map(|socket| socket.address).collect();
    let offer = Offer {
        sockets,
        hop_secret: Some("sixteen bytes of it".into()),
    };
    let taking = async {
        let inherited = inherited(&mut new).await.unwrap().unwrap();
        new.send(&Message::Ready(7)).await.unwrap();
        inherited
    };
    let (successor, mut taken) = tokio::join!(hand_over(&mut old, offer, takeover.as_fd()), taking);
    assert_eq!(successor.unwrap(), 7);
    for (n, address) in addresses.into_iter().enumerate() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let socket = taken.claim(&format!("worker {n}"), any).unwrap();
        assert_eq!(socket.local_addr().unwrap(), address);
    }
    assert!(taken.claim_takeover().is_some());
    assert_eq!(taken.hop_secret(), Some("sixteen bytes of it".into()));
    let shown = format!("{taken:?}");
    assert!(!shown.contains("sixteen"), "{shown}");
}

#[tokio::test(start_paused = true)]
async fn the_old_process_goes_on_unless_the_new_one_says_ready_and_lives() {
    let folder = tempfile::tempdir().unwrap();
    let takeover = StdUnixListener::bind(folder.path().join("takeover")).unwrap();
    for (said, why) in [
        (None, "took too long"),
        (Some(Message::Acknowledged), "said Acknowledged"),
    ] {
        let (mut new, mut old) = channels();
        if let Some(message) = said {
            new.send(&message).await.unwrap();
        }
        let error = hand_over(&mut old, nothing(), takeover.as_fd()).await;
        let error = error.unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}

/// Where a running process waits for its successor, in a folder of its own.
fn waiting() -> (tempfile::TempDir, PathBuf, TakeoverListener) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("takeover");
    let listener = TakeoverListener::open(&path, &mut Inherited::default()).unwrap();
    (folder, path, listener)
}

fn nothing() -> Offer {
    Offer {
        sockets: Vec::new(),
        hop_secret: None,
    }
}

async fn take_over(path: &Path) -> Result<Option<Takeover>, String> {
    let begun = Takeover::begin(path).await;
    let (takeover, _) = begun.map_err(|error| error.to_string())?.unwrap();
    takeover.ready().await
}

#[tokio::test(start_paused = true)]
async fn a_silent_process_keeps_no_successor_out() {
    let (_folder, path, listener) = waiting();
    let mut gone = Channel::new(UnixStream::connect(&path).await.unwrap()).unwrap();
    gone.send(&Message::Ready(1)).await.unwrap();
    drop(gone);
    let mut silent = Channel::new(UnixStream::connect(&path).await.unwrap()).unwrap();
    let both = async { tokio::join!(listener.handed_over(nothing), take_over(&path)) };
    let (handed, taken) = tokio::time::timeout(START * 3, both).await.unwrap();
    assert_eq!(handed.successor, std::process::id());
    assert!(matches!(taken, Ok(Some(_))), "{taken:?}");
    // Whoever had the sockets too must not serve.
    assert!(matches!(silent.next().await, Ok(Some(Message::Offer(_)))));
    assert!(matches!(silent.next().await, Ok(Some(Message::Refused(_)))));
}

#[tokio::test(start_paused = true)]
async fn of_two_that_are_ready_one_takes_over() {
    let (_folder, path, listener) = waiting();
    let all = async {
        tokio::join!(
            listener.handed_over(nothing),
            take_over(&path),
            take_over(&path)
        )
    };
    let (_handed, one, two) = tokio::time::timeout(START * 3, all).await.unwrap();
    let [taken, refused]: [_; 2] = match one {
        Ok(_) => [one, two],
        Err(_) => [two, one],
    };
    assert!(matches!(taken, Ok(Some(_))), "{taken:?}");
    assert!(refused.unwrap_err().contains("another process"));
}

#[tokio::test]
async fn a_change_refuses_who_was_offered_the_sockets_and_is_not_ready() {
    let (_folder, path, listener) = waiting();
    let offered = async || {
        let mut channel = Channel::new(UnixStream::connect(&path).await.unwrap()).unwrap();
        let offer = channel.next().await.unwrap();
        assert!(matches!(offer, Some(Message::Offer(_))));
        channel.sockets(1).await.unwrap().unwrap();
        channel
    };
    let asks = async {
        let mut silent = offered().await;
        assert!(listener.turn().is_some());
        let refused = silent.next().await.unwrap();
        assert!(matches!(refused, Some(Message::Refused(why)) if why == CHANGED));
        // Ready before it hears of the change.
        let mut late = offered().await;
        let turn = listener.turn();
        late.send(&Message::Ready(1)).await.unwrap();
        drop(turn);
        let refused = late.next().await.unwrap();
        assert!(matches!(refused, Some(Message::Refused(why)) if why == CHANGED));
    };
    tokio::select! {
        _ = listener.handed_over(nothing) => panic!("to nobody"),
        () = asks => {}
    }
}

#[tokio::test]
async fn nothing_changes_once_a_successor_is_ready() {
    let (_folder, path, listener) = waiting();
    let mut channel = Channel::new(UnixStream::connect(&path).await.unwrap()).unwrap();
    let (stream, _) = listener.listener.accept().await.unwrap();
    channel.send(&Message::Ready(7)).await.unwrap();
    let taken = watch::Sender::new(false);
    let ready = listener.ready(stream, &nothing, taken.subscribe()).await;
    assert!(listener.turn().is_none());
    assert_eq!(ready.unwrap().1, 7);
    assert!(listener.turn().is_some());
}
