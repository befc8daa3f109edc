//! A takeover in which one of the two dies, hangs or is told to end at an odd moment.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_successor_that_dies_before_it_has_heard_leaves_the_old_one_serving() {
    let upstream = server().await;
    let place = Place::new(upstream.addr, upstream.addr);
    let old = place.start();
    let mut socket = begin(&place);
    socket.write_all(b"{\"serving\":1}\n").unwrap();
    read_until(&mut socket, "draining");
    // It still accepts: who would, if the new one never read this?
    assert!(answers(old.front).await && answers(old.hops[0]).await);
    drop(socket);
    old.says("this process goes on");
    assert!(answers(old.front).await && answers(old.hops[0]).await);
    assert_eq!(old.ready().await, 200);
    assert_eq!(place.next().front, old.front);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_process_serves_alone_when_the_old_one_falls_silent() {
    let upstream = server().await;
    let place = Place::new(upstream.addr, upstream.addr);
    // An old process that stops at one point of the conversation or another.
    for (sent, piece) in [
        ("", "gives no answer; starting without it"),
        (
            "{\"here\":1}\n{\"all\":0}\n",
            "took over; the other process does not answer",
        ),
    ] {
        let _ = std::fs::remove_file(place.socket());
        let listener = UnixListener::bind(place.socket()).unwrap();
        let old = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // A true one passes its listeners on.
            drop(listener);
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            read_until(&mut stream, "hello");
            stream.write_all(sent.as_bytes()).unwrap();
            if !sent.is_empty() {
                read_until(&mut stream, "serving");
            }
            stream
        });
        let folder = place.folder.clone();
        let (mut child, lines) = spawn(folder.path(), &place.args(&[]));
        let asking = format!("asking the process at {}", place.socket().display());
        let mut front = None;
        let mut said = Vec::new();
        while !(said.iter().any(|line: &String| line.contains(piece)) && front.is_some()) {
            let line = lines.recv_timeout(PATIENCE).expect(piece);
            if let Some((_, rest)) = line.split_once("front on http://") {
                front = rest.split(' ').next().unwrap().parse().ok();
            }
            said.push(line);
        }
        assert!(said.iter().any(|line| line.contains(&asking)), "{said:?}");
        assert!(answers(front.unwrap()).await);
        let mut stream = old.join().unwrap();
        if !sent.is_empty() {
            // Late, but it comes: then the old one may stop.
            stream.write_all(b"\"draining\"\n").unwrap();
            read_until(&mut stream, "heard");
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_third_process_starts_at_once_when_the_second_was_killed() {
    let gate = Gate::new();
    let upstream = gated(&gate).await;
    let place = Place::new(upstream.addr, upstream.addr);
    let mut first = place.start();
    let mut stream = Client::connect(first.front).await;
    stream.post("/generate", "", b"{\"stream\":true}").await;
    let begun = stream.read_until(|reader| !reader.body.is_empty()).await;
    assert_eq!(begun.status(), 200);
    let mut second = place.next();
    first.says("handed over: 1 requests");
    second.child.kill().unwrap();
    second.child.wait().unwrap();
    // The first one still drains, but it is nobody's to ask any more.
    let third = Process::in_folder(place.folder.clone(), &place.args(&[]));
    let said = third.says("take");
    assert!(said.contains("takeover at "), "{said}");
    assert!(answers(third.front).await);
    assert!(first.child.try_wait().unwrap().is_none());
    gate.open();
    let mut rest = Vec::new();
    while !rest.ends_with(b"0\r\n\r\n") {
        let read = stream.stream.read_buf(&mut rest).await.unwrap();
        assert!(read > 0, "the stream has its end");
    }
    drop(stream);
    assert!(first.exit().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_reload_while_a_successor_is_offered_the_listeners() {
    let upstream = server().await;
    let place = Place::new(upstream.addr, upstream.addr);
    let old = place.start();
    let socket = begin(&place);
    old.signal(Signal::SIGHUP);
    let said = old.says("reload");
    assert!(
        said.contains("a takeover is under way; send it again"),
        "{said}"
    );
    drop(socket);
    old.says("this process goes on");
    old.signal(Signal::SIGHUP);
    old.says("reloaded: every key is as before");
    let refused = "queuescope_reloads_total{result=\"refused\"}";
    assert_eq!(old.metric(refused).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_our_socket_stays_where_it_is() {
    let upstream = server().await;
    let place = Place::new(upstream.addr, upstream.addr);
    std::fs::write(place.socket(), "precious").unwrap();
    let (child, lines) = spawn(place.folder.path(), &place.args(&[]));
    let mut process = place.not_yet(child, lines);
    assert!(!process.exit().await.success());
    let said: Vec<String> = process.lines.iter().collect();
    let why = format!(
        "takeover = \"{}\": is a file, not a socket; give another path",
        place.socket().display()
    );
    assert!(said.iter().any(|line| line.contains(&why)), "{said:?}");
    assert_eq!(std::fs::read_to_string(place.socket()).unwrap(), "precious");
    std::fs::remove_file(place.socket()).unwrap();
    let _process = place.start();
    let mode = std::fs::metadata(place.socket())
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_ends_a_process_that_waits_for_its_predecessor() {
    let upstream = server().await;
    let place = Place::new(upstream.addr, upstream.addr);
    let listener = UnixListener::bind(place.socket()).unwrap();
    let (child, lines) = spawn(place.folder.path(), &place.args(&[]));
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    read_until(&mut stream, "hello");
    // It is there, but gives nothing for now.
    stream.write_all(b"{\"here\":1}\n").unwrap();
    let mut process = place.not_yet(child, lines);
    process.says("process 1 is there");
    process.signal(Signal::SIGTERM);
    process.says("ended before it served");
    assert!(process.exit().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_may_outlast_drain_timeout_s_after_a_takeover_but_not_after_sigterm() {
    let gate = Gate::new();
    let upstream = gated(&gate).await;
    let place = Place::new(upstream.addr, upstream.addr);
    let args = place.args(&["--drain-timeout-s", "0"]);
    let mut old = Process::in_folder(place.folder.clone(), &args);
    old.says("takeover at ");
    let mut streams = [
        Client::connect(old.front).await,
        Client::connect(old.front).await,
    ];
    for stream in &mut streams {
        stream.post("/generate", "", b"{\"stream\":true}").await;
        stream.read_until(|reader| !reader.body.is_empty()).await;
    }
    let next = place.next();
    old.says("handed over: 2 requests");
    // Far longer than no time at all.
    for _ in 0..50 {
        assert!(answers(next.front).await);
    }
    old.signal(Signal::SIGTERM);
    old.says("draining: 2 requests");
    old.says("still open after drain_timeout_s");
    assert!(old.exit().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_door_of_a_process_that_is_slow_to_answer_stays_its_own() {
    let upstream = server().await;
    let place = Place::new(upstream.addr, upstream.addr);
    let socket = UnixListener::bind(place.socket()).unwrap();
    let (child, lines) = spawn(place.folder.path(), &place.args(&[]));
    let mut process = place.not_yet(child, lines);
    assert!(!process.exit().await.success());
    let said: Vec<String> = process.lines.iter().collect();
    let why = "a process listens there but gave no answer";
    assert!(said.iter().any(|line| line.contains(why)), "{said:?}");
    UnixStream::connect(place.socket()).unwrap();
    drop(socket);
}
