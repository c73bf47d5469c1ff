package broker

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/fleettest"
)

func TestCall(t *testing.T) {
	b, dom := start(t, nil)
	d := connectRaw(t, b, connectPacket{clientID: testClientID(1)})
	d.serve(func(r rpc) string {
		switch {
		case r.Method != "tools/call":
			return ""
		case strings.Contains(string(r.Params), "refused"):
			return `"error":{"message":"Unknown tool: refused"}`
		case strings.Contains(string(r.Params), "unescaped"):
			return `"error":{"message":"no "such" thing"}`
		case strings.Contains(string(r.Params), "garbage"):
			return `"result":[]`
		}
		return textResult("got " + string(r.Params))
	})

	a, err := makeCall(b, d.id, "self.audio_speaker.set_volume", `{"volume":50}`, deadline, nil)
	if want := `got {"name":"self.audio_speaker.set_volume","arguments":{"volume":50}}`; err != nil || a.Text != want {
		t.Errorf("answer %q, %v, want %q", a.Text, err, want)
	}
	for tool, want := range map[string]string{
		"refused": "Unknown tool: refused", "unescaped": `no "such" thing`, "garbage": "the answer cannot be read",
	} {
		_, err := makeCall(b, d.id, tool, `{}`, deadline, nil)
		if refused, ok := errors.AsType[*fleet.ToolError](err); !ok || !strings.Contains(refused.Message, want) ||
			refused.Tool != tool {
			t.Errorf("%s: %v, want a ToolError with %q", tool, err, want)
		}
	}
	if _, err := makeCall(b, d.id, `quote"`, `{}`, deadline, nil); !errors.Is(err, fleet.ErrInvalid) {
		t.Errorf("a name that no device can report errors about: %v", err)
	}
	if _, err := makeCall(b, testID(2), "x", `{}`, deadline, nil); !errors.Is(err, fleet.ErrOffline) {
		t.Errorf("unknown device: %v", err)
	}
	if dom.count("responded") != 1 {
		t.Errorf("want one report of the first answer:\n%s", dom.happened())
	}
}

func TestCallWithoutAnswer(t *testing.T) {
	b, dom := start(t, func(o *options) { o.ProbeEvery = 40 * time.Millisecond })
	d := connectRaw(t, b, connectPacket{clientID: testClientID(1)})
	pings := make(chan int64, 100)
	d.serve(func(r rpc) string {
		switch {
		case r.Method == "tools/call" && strings.Contains(string(r.Params), `"slow"`):
			return "silence"
		case r.Method == "ping":
			pings <- r.ID
			return "silence"
		}
		return ""
	})
	fleettest.Eventually(t, "an answer to initialize", func() bool { return dom.count("responded") == 1 })
	if err := callInVain(b, d.id, "slow", nil); !errors.Is(err, fleet.ErrNoAnswer) {
		t.Fatalf("%v, want no answer", err)
	}
	if want := fmt.Sprintf("unresponsive %s: no answer to slow", d.id); dom.count(want) != 1 {
		t.Errorf("want %q:\n%s", want, dom.happened())
	}
	id := <-pings
	if n := b.Stats().Unresponsive; n != 1 {
		t.Errorf("%d unresponsive devices", n)
	}
	d.reply(id, `"error":{"message":"Method not implemented: ping"}`)
	fleettest.Eventually(t, "the device is well again", func() bool { return dom.count("responded") == 2 })
	if n := b.Stats().Unresponsive; n != 0 {
		t.Errorf("%d unresponsive devices after an answer", n)
	}
}

// A late answer reaches its call once, over the same connection or a later one.
func TestLateAnswer(t *testing.T) {
	for _, reconnects := range []bool{false, true} {
		t.Run(fmt.Sprintf("reconnects=%v", reconnects), func(t *testing.T) {
			b, _ := start(t, nil)
			d := connectRaw(t, b, connectPacket{clientID: testClientID(1)})
			ids := make(chan int64, 1)
			d.serve(func(r rpc) string {
				if r.Method == "tools/call" {
					ids <- r.ID
					return "silence"
				}
				return ""
			})
			late := make(chan fleet.Answer, 10)
			err := callInVain(b, d.id, "self.upgrade_firmware", func(a fleet.Answer) { late <- a })
			if !errors.Is(err, fleet.ErrNoAnswer) {
				t.Fatal(err)
			}
			if reconnects {
				d = connectRaw(t, b, connectPacket{clientID: testClientID(1)})
				d.serve(nil)
			}
			id := <-ids
			for range 3 {
				d.reply(id, textResult("true"))
			}
			if a := <-late; a.Text != "true" {
				t.Errorf("late answer %q", a.Text)
			}
			fleettest.Eventually(t, "the repetitions", func() bool { return b.Stats().Unmatched == 2 })
			if len(late) != 0 {
				t.Error("the same answer was late more than once")
			}
		})
	}
}

// An answer is not late before its call is given up, however close the two are.
func TestLateAnswerAtTheLastMoment(t *testing.T) {
	b, _ := start(t, nil)
	d := connectRaw(t, b, connectPacket{clientID: testClientID(1)})
	d.serve(func(r rpc) string {
		if r.Method == "tools/call" {
			time.Sleep(time.Millisecond)
		}
		return ""
	})
	inTime, late, notSent := 0, 0, 0
	came := make(chan fleet.Answer, 1)
	for i := range 300 {
		wait := time.Millisecond + time.Duration(i%40)*10*time.Microsecond
		switch _, err := makeCall(b, d.id, "x", `{}`, wait, func(a fleet.Answer) { came <- a }); {
		case err == nil:
			inTime++
		case errors.Is(err, fleet.ErrOffline): // the deadline passed before the call was sent
			notSent++
		default:
			select { // a device further behind would have its oldest calls forgotten
			case <-came:
				late++
			case <-time.After(deadline):
				t.Fatalf("no late answer to a call that ended with %v", err)
			}
		}
	}
	t.Logf("%d in time, %d late, %d not sent", inTime, late, notSent)
}

func TestLostConnection(t *testing.T) {
	b, dom := start(t, nil)
	for name, end := range map[string]func(*rawDevice){
		"clean=false: " + fleet.CauseSocketClosed: func(d *rawDevice) { d.conn.Close() },
		"clean=true: ": func(d *rawDevice) { d.write([]byte{0xe0, 0}) },
		"clean=false: " + fleet.CauseRevoked: func(d *rawDevice) {
			b.Kick(d.id, fleet.Cause{Reason: fleet.Because(fleet.CauseRevoked), Text: "revoked"})
		},
	} {
		d := connectRaw(t, b, connectPacket{clientID: testClientID(1)})
		d.serve(func(r rpc) string {
			if r.Method == "tools/call" {
				end(d)
				return "silence"
			}
			return ""
		})
		if _, err := makeCall(b, d.id, "x", `{}`, deadline, nil); !errors.Is(err, fleet.ErrLost) {
			t.Errorf("%s: %v, want %v", name, err, fleet.ErrLost)
		}
		fleettest.Eventually(t, name, func() bool {
			return dom.count(fmt.Sprintf("disconnected %s %s", d.id, name)) == 1
		})
	}
}

func TestLine(t *testing.T) {
	b, dom := start(t, nil)
	d := connectRaw(t, b, connectPacket{clientID: testClientID(1)})
	d.serve(nil)
	fleettest.Eventually(t, "onboarding", func() bool {
		return dom.count("responded") == 1 && b.Stats().Onboarding == 0
	})
	var turns []fleet.Turn
	for range 1 + maxWaiting {
		turn, err := b.Queue(d.id, fleet.KindOperator)
		if err != nil {
			t.Fatal(err)
		}
		turns = append(turns, turn)
	}
	if _, err := b.Queue(d.id, fleet.KindOperator); !errors.Is(err, fleet.ErrBusy) {
		t.Errorf("%v, want %v", err, fleet.ErrBusy)
	}
	turns[1].Done() // cancelled while it waits
	turns[0].Done()
	turns[0].Done()
	for i, turn := range turns {
		select {
		case <-turn.Ready():
			if i != 0 && i != 2 {
				t.Errorf("turn %d is ready", i)
			}
		default:
			if i == 0 || i == 2 {
				t.Errorf("turn %d is not ready", i)
			}
		}
	}
	d.conn.Close()
	select {
	case <-turns[9].Lost():
	case <-time.After(deadline):
		t.Error("a waiting turn does not notice that the connection has ended")
	}
	if _, err := turns[2].Send(t.Context(), fleet.Invocation{Tool: "x"}, nil); !errors.Is(err, fleet.ErrOffline) {
		t.Errorf("sending over an ended connection: %v", err)
	}
}

// A voice model's call goes before other waiting calls at every second turn, and is still
// accepted on a busy device.
func TestSpokenCallsGoFirst(t *testing.T) {
	b, dom := start(t, nil)
	d := connectRaw(t, b, connectPacket{clientID: testClientID(1)})
	d.serve(nil)
	fleettest.Eventually(t, "onboarding", func() bool {
		return dom.count("responded") == 1 && b.Stats().Onboarding == 0
	})
	queue := func(n int, kind fleet.PrincipalKind) (turns []fleet.Turn) {
		for range n {
			turn, err := b.Queue(d.id, kind)
			if err != nil {
				t.Fatal(err)
			}
			turns = append(turns, turn)
		}
		if _, err := b.Queue(d.id, kind); !errors.Is(err, fleet.ErrBusy) {
			t.Errorf("%s: %v, want %v", kind, err, fleet.ErrBusy)
		}
		return turns
	}
	others := queue(1+maxWaiting, fleet.KindOperator)
	spoken := queue(maxSpoken, fleet.KindVoice)
	spoken[3].Done() // cancelled while it waits
	spoken = slices.Delete(spoken, 3, 4)
	want := others[:1:1]
	for i := range spoken {
		want = append(want, spoken[i], others[1+i])
	}
	want = append(want, others[1+len(spoken):]...)
	for i, turn := range want {
		select {
		case <-turn.Ready():
			turn.Done()
		default:
			t.Fatalf("turn %d of %d is not ready", i, len(want))
		}
	}
	if turn, err := b.Queue(d.id, fleet.KindVoice); err != nil || turn.Ready() != now {
		t.Errorf("the line is not empty: %v", err)
	}
}
