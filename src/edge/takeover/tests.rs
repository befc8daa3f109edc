//! What a takeover trusts, and what it does when the other side is silent.

use super::*;

fn listening(configured: &str) -> OwnedFd {
    StdListener::bind(configured).unwrap().into()
}

#[tokio::test]
async fn a_socket_is_where_it_is_said_to_be() {
    let fd = listening("127.0.0.1:0");
    let port = SockRef::from(&fd).local_addr().unwrap();
    let port = port.as_socket().unwrap().port();
    assert!(check("listen", "127.0.0.1:0", &fd).is_ok());
    assert!(check("listen", &format!("127.0.0.1:{port}"), &fd).is_ok());
    for wrong in ["127.0.0.1:1", "127.0.0.2:0", "[::1]:0", "nonsense", ""] {
        let why = check("listen", wrong, &fd).unwrap_err();
        assert!(why.contains("is not at"), "{why}");
    }
    assert!(check(DOOR, "", &fd).is_err(), "no Unix socket");
    let client = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    let why = check("listen", "127.0.0.1:0", &client.into()).unwrap_err();
    assert!(why.contains("does not listen"), "{why}");
}

#[tokio::test]
async fn a_stale_draining_is_not_taken_for_the_last_word() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let taking = Taking {
        line: Line::new(ours).unwrap(),
    };
    let mut old = Line::new(theirs).unwrap();
    // All of it waits when the new process looks.
    old.say(&Message::Draining).await.unwrap();
    old.refuse("it took too long").await;
    let taken = taking.serving().await;
    assert!(matches!(&taken, Taken::Refused(why) if why.contains("too long")));
}

/// The line of an old process that falls silent until the new one serves without it, and the new one's watch over it.
async fn silent(serves: bool) -> (Line, tokio::task::JoinHandle<()>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let taking = Taking {
        line: Line::new(ours).unwrap(),
    };
    let mut old = Line::new(theirs).unwrap();
    let Taken::Silent(predecessor) = taking.serving().await else {
        panic!("it said nothing");
    };
    let gone = tokio::spawn(predecessor.gone(move || serves));
    let serving = old.next().await.unwrap();
    assert!(matches!(serving, Some(Message::Serving(_))));
    (old, gone)
}

#[tokio::test(start_paused = true)]
async fn a_silent_process_is_no_reason_to_end() {
    let (mut old, gone) = silent(true).await;
    old.part().await.unwrap();
    drop(old);
    gone.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn one_that_ends_lets_the_other_go_on() {
    let (mut old, gone) = silent(false).await;
    assert!(old.part().await.is_err(), "nobody would be left");
    gone.await.unwrap();
}

#[tokio::test]
async fn a_successor_knows_the_hops_of_the_process_before_it() {
    let folder = tempfile::tempdir().unwrap();
    let door = StdUnixListener::bind(folder.path().join("door")).unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (mut new, mut old) = (Line::new(ours).unwrap(), Line::new(theirs).unwrap());
    let offer = Offer {
        sockets: Vec::new(),
        hop_secret: Some("sixteen bytes of it".into()),
    };
    let taking = async {
        let inherited = new.ask().await.unwrap().unwrap();
        new.say(&Message::Serving(7)).await.unwrap();
        inherited.hop_secret()
    };
    let (successor, secret) = tokio::join!(old.offer(offer, door.as_fd()), taking);
    assert_eq!(successor.unwrap(), 7);
    assert_eq!(secret, Some("sixteen bytes of it".into()));
    let shown = format!("{:?}", Message::HopSecret("sixteen bytes of it".into()));
    assert!(!shown.contains("sixteen"), "{shown}");
}
