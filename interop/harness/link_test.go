package harness

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// echoServer echoes every byte.
func echoServer(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	return listener.Addr().String()
}

func dial(t *testing.T, address string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func send(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	if _, err := conn.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
}

func receive(conn net.Conn, n int, limit time.Duration) (string, error) {
	_ = conn.SetReadDeadline(time.Now().Add(limit))
	buffer := make([]byte, n)
	_, err := io.ReadFull(conn, buffer)
	return string(buffer), err
}

func TestLinkPassesAndCounts(t *testing.T) {
	link, err := NewLink(echoServer(t))
	if err != nil {
		t.Fatal(err)
	}
	defer link.Close()
	conn := dial(t, link.Address())
	send(t, conn, "hello")
	if got, err := receive(conn, 5, time.Second); err != nil || got != "hello" {
		t.Fatalf("got %q, %v", got, err)
	}
	if link.Up() != 5 || link.Down() != 5 {
		t.Errorf("counted %d up and %d down, want 5 and 5", link.Up(), link.Down())
	}
}

func TestLinkCutClosesAndRefusesThenResumesOnTheSamePort(t *testing.T) {
	link, err := NewLink(echoServer(t))
	if err != nil {
		t.Fatal(err)
	}
	defer link.Close()
	conn := dial(t, link.Address())
	send(t, conn, "x")
	if _, err := receive(conn, 1, time.Second); err != nil {
		t.Fatal(err)
	}
	if err := link.Cut(); err != nil {
		t.Fatal(err)
	}
	if _, err := receive(conn, 1, time.Second); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the open connection was not closed: %v", err)
	}
	if conn, err := net.Dial("tcp", link.Address()); err == nil {
		_ = conn.Close()
		t.Error("a cut link accepted a connection")
	}
	if err := link.Resume(); err != nil {
		t.Fatal(err)
	}
	again := dial(t, link.Address())
	send(t, again, "y")
	if got, err := receive(again, 1, time.Second); err != nil || got != "y" {
		t.Fatalf("after resume: %q, %v", got, err)
	}
}

func TestLinkBlackholeHoldsAndThenDelivers(t *testing.T) {
	link, err := NewLink(echoServer(t))
	if err != nil {
		t.Fatal(err)
	}
	defer link.Close()
	conn := dial(t, link.Address())
	if err := link.Blackhole(); err != nil {
		t.Fatal(err)
	}
	send(t, conn, "held")
	if _, err := receive(conn, 4, 200*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("a black hole answered: %v", err)
	}
	fresh := dial(t, link.Address())
	send(t, fresh, "also")
	if err := link.Resume(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []net.Conn{conn, fresh} {
		if _, err := receive(c, 4, time.Second); err != nil {
			t.Errorf("what was held did not arrive: %v", err)
		}
	}
}
