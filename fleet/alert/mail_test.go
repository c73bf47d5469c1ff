package alert_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"fleetd/fleet/alert"
	"fleetd/fleet/fleettest"
)

// mailbox is a mail server that refuses mails while the test wants it to.
type mailbox struct {
	mu    sync.Mutex
	away  error
	tries chan string // subject, or "refused"
}

func (m *mailbox) Send(_ context.Context, to []string, subject, _ string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.away != nil {
		m.tries <- "refused"
		return m.away
	}
	m.tries <- subject + " to " + strings.Join(to, "+")
	return nil
}

func (m *mailbox) set(away error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.away = away
}

// next waits for the next attempt.
func (m *mailbox) next(t *testing.T) string {
	t.Helper()
	select {
	case got := <-m.tries:
		return got
	case <-time.After(time.Minute):
		t.Fatal("no mail was tried")
		return ""
	}
}

func TestMailsAreDigests(t *testing.T) {
	box := &mailbox{tries: make(chan string, 100)}
	var disks []alert.Disk
	w := newWorld(t, func(o *alert.Options) {
		o.Mail, o.CheckAddress = box, func(string) error { return nil }
		o.MailText = func(lang string, d alert.Digest) (string, string) {
			return fmt.Sprintf("%s %d of %d", lang, len(d.Items), d.Open), ""
		}
		o.Disks = func() []alert.Disk { return disks }
		o.MailEvery, o.MailLook = 50*time.Millisecond, 5*time.Millisecond
	})
	fill := func(n int) {
		disks = nil
		for i := range n {
			disks = append(disks, alert.Disk{Name: fmt.Sprint("disk ", i), Free: 1, Total: 100})
		}
	}
	run := func() (stop func()) {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { defer close(done); _ = w.RunMail(ctx) }()
		return func() { cancel(); <-done }
	}
	// The test's clock does not advance while the test waits for mails, so another goroutine
	// advances it.
	ticking := func() (stop func()) {
		quit, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			for {
				select {
				case <-quit:
					return
				case <-time.After(2 * time.Millisecond):
					w.mu.Lock()
					w.now = w.now.Add(time.Second)
					w.mu.Unlock()
				}
			}
		}()
		return func() { close(quit); <-done }
	}

	// Events from before there were recipients are not sent.
	fill(1)
	w.pass(3 * time.Minute)
	stop, halt := run(), ticking()
	to := []string{"ada@example.org", "bo@example.org"}
	fleettest.Eventually(t, "the mail is on record", func() bool {
		seq, err := w.store.MailedThrough(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return seq > 0
	})
	halt()
	if _, err := w.SetSettings(t.Context(), admin, alert.SettingsChange{Recipients: &to}); err != nil {
		t.Fatal(err)
	}

	// Five events at once are one mail, even after the server was unavailable and fleetd
	// restarted.
	box.set(errors.New("451 come back later"))
	fill(6)
	w.pass(3 * time.Minute)
	halt = ticking()
	if got := box.next(t); got != "refused" {
		t.Fatalf("mail %q", got)
	}
	fleettest.Eventually(t, "the failure is recorded", func() bool {
		return strings.Contains(w.MailStatus().Failure, "451")
	})
	stop()
	halt()
	box.set(nil)
	for len(box.tries) > 0 {
		<-box.tries
	}
	stop, halt = run(), ticking()
	if got, want := box.next(t), "en 5 of 6 to ada@example.org+bo@example.org"; got != want {
		t.Errorf("mail %q, want %q", got, want)
	}
	stop()
	halt()
	if len(box.tries) > 0 {
		t.Errorf("another mail came: %q", <-box.tries)
	}
	if _, err := w.TestMail(t.Context(), operator); err == nil {
		t.Error("an operator sent a test mail")
	}
	if status, err := w.TestMail(t.Context(), admin); err != nil || status.Failure != "" {
		t.Errorf("test mail: %+v, %v", status, err)
	}
}
