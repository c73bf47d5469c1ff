package broker

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"fleetd/broker/dialect"
	"fleetd/broker/link"
	"fleetd/broker/sim"
	"fleetd/fleet"
	"fleetd/fleet/fleettest"
)

const (
	programHello = `{"type": "hello", "version": 3, "features": {"mcp": true}, ` +
		`"transport": "udp", "audio_params": {"format": "opus"}}`
	boardHello = `{"type":"hello","version":3,"transport":"udp",` +
		`"features":{"mcp":true,"glyph_push":false},"audio_params":{"format":"opus"}}`
)

// helloAnswer sends hello and returns the session of the answer, and whether a goodbye followed
// it.
func helloAnswer(t *testing.T, b *system, d *rawDevice, hello string) (session string, goodbye bool) {
	t.Helper()
	d.publish(hello)
	for {
		_, text, err := d.message()
		if err != nil {
			t.Fatal(err)
		}
		var m struct{ Type, Session_ID string }
		if json.Unmarshal([]byte(text), &m) != nil || m.Type != "hello" {
			continue
		}
		// Both messages are queued before the next publish is read.
		d.publish(`{"type":"mcp","payload":{"jsonrpc":"2.0","method":"notifications/end"}}`)
		c := b.registry.connection(d.id)
		fleettest.Eventually(t, "hello is dealt with", func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			goodbye = !c.channel.goodbye.IsZero()
			return goodbye || c.channel.session == m.Session_ID
		})
		return m.Session_ID, goodbye
	}
}

// A program that simulates a board connects for a conversation and disconnects after it. Its
// tools are listed and called meanwhile.
func TestProgramIsListedInItsConversation(t *testing.T) {
	b, dom := start(t, func(o *options) {
		d := o.Devices.(*domain)
		d.fresh, d.software = false, true
	})
	f := switchOn(t, b, sim.Options{Devices: 1, Boards: []string{"py-desktop"}})
	p := f.Device(0)
	id, _ := fleet.ParseDeviceID(p.ID())
	fleettest.Eventually(t, "boot", func() bool { return f.Stats().Booted == 1 })
	if n := b.Stats().Connects; n != 0 {
		t.Fatalf("%d connections of a program to which nobody talks", n)
	}
	p.Talk()
	fleettest.Eventually(t, "the tools are listed", func() bool { return len(dom.listed()) == 1 })
	if inv := dom.listed()[0].Inventory; len(inv.Tools) != 2 {
		t.Errorf("inventory %+v", inv)
	}
	fleettest.Eventually(t, "the channel is open", func() bool { return p.Talking() && b.Stats().Channels == 1 })
	a, err := makeCall(b, id, "self.audio_speaker.set_volume", `{"volume":30}`, deadline, nil)
	if err != nil || a.Text != "true" {
		t.Errorf("%q, %v", a.Text, err)
	}
	if !p.Talking() {
		t.Error("the channel was closed")
	}
	p.EndTalk()
	fleettest.Eventually(t, "the program has left", func() bool {
		return dom.count("disconnected "+string(id)+" clean=true") == 1
	})
	_, err = makeCall(b, id, "self.audio_speaker.set_volume", `{"volume":30}`, deadline, nil)
	if !errors.Is(err, fleet.ErrOffline) {
		t.Errorf("a call to a program that left: %v", err)
	}
	if n := b.Stats().Channels; n != 0 {
		t.Errorf("%d channels open", n)
	}
}

func TestChannelEndsInTime(t *testing.T) {
	b, dom := start(t, func(o *options) {
		o.Devices.(*domain).software = true
		o.ChannelTimeout = 50 * time.Millisecond
	})
	f := switchOn(t, b, sim.Options{Devices: 1, Boards: []string{"py-desktop"}})
	fleettest.Eventually(t, "boot", func() bool { return f.Stats().Booted == 1 })
	f.Device(0).Talk()
	fleettest.Eventually(t, "goodbye, and the program leaves", func() bool { return dom.count("disconnected") == 1 })
	if n := b.Stats().Channels; n != 0 {
		t.Errorf("%d channels open", n)
	}
}

// A call in flight is answered before its device is sent a goodbye.
func TestChannelOutlivesCall(t *testing.T) {
	b, _ := start(t, func(o *options) {
		o.Devices.(*domain).software = true
		o.ChannelTimeout = 20 * time.Millisecond
		o.VisionURL = nil // no request is sent at connecting
	})
	d := connectRaw(t, b, connectPacket{clientID: testClientID(1)})
	turn, err := b.Queue(d.id, fleet.KindOperator)
	if err != nil {
		t.Fatal(err)
	}
	<-turn.Ready()
	if _, goodbye := helloAnswer(t, b, d, programHello); goodbye {
		t.Fatal("no channel")
	}
	time.Sleep(60 * time.Millisecond)
	if n := b.Stats().Channels; n != 1 {
		t.Error("the channel was closed during a call")
	}
	turn.Done()
	fleettest.Eventually(t, "the channel is closed", func() bool { return b.Stats().Channels == 0 })
}

// The habit shown by the device's connections decides; before there is one, the hardware named in
// its boot poll decides.
func TestWhoseChannelIsKept(t *testing.T) {
	tests := []struct {
		name     string
		software bool
		habit    dialect.Habit
		idle     time.Duration // time since CONNECT
		hello    string
		keep     bool
	}{
		{"program, first time", true, dialect.HabitUnknown, 0, programHello, true},
		{"program without MCP", true, dialect.HabitUnknown, 0, `{"type":"hello","version":3,"transport":"udp"}`, false},
		{"board woken while MQTT was lost", false, dialect.HabitUnknown, 0, boardHello, false},
		{"idle board", false, dialect.HabitUnknown, time.Minute, boardHello, false},
		{"device that named no hardware and stays", true, dialect.HabitStays, 0, boardHello, false},
		{"idle device that named no hardware", true, dialect.HabitUnknown, time.Minute, boardHello, false},
		{"program that claims hardware, seen before", false, dialect.HabitLeaves, 0, programHello, true},
		{"seen leaving, idle now", false, dialect.HabitLeaves, time.Minute, boardHello, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b, dom := start(t, func(o *options) { o.Devices.(*domain).software = tt.software })
			d := connectRaw(t, b, connectPacket{clientID: testClientID(1)})
			fleettest.Eventually(t, "it connected", func() bool { return dom.count("connected") == 1 })
			c := b.registry.connection(d.id)
			c.device.learn(tt.habit)
			c.At = c.At.Add(-tt.idle)
			session, goodbye := helloAnswer(t, b, d, tt.hello)
			if goodbye == tt.keep {
				t.Errorf("goodbye after hello: %v", goodbye)
			}
			if !tt.keep {
				return
			}
			d.publish(`{"session_id":"` + session + `","type":"goodbye"}`)
			fleettest.Eventually(t, "the channel is closed", func() bool { return b.Stats().Channels == 0 })
		})
	}
}

// A program that claims hardware is recognised when it disconnects after its first conversation.
// A program that stays connected counts as a board again.
func TestHabitIsLearned(t *testing.T) {
	b, dom := start(t, nil)
	d := connectRaw(t, b, connectPacket{clientID: testClientID(1)})
	if _, goodbye := helloAnswer(t, b, d, programHello); !goodbye {
		t.Fatal("the channel of an unknown device was kept")
	}
	d.write([]byte{0xe0, 0})
	d.conn.Close()
	fleettest.Eventually(t, "it left", func() bool { return dom.count("disconnected") == 1 })

	d = connectRaw(t, b, connectPacket{clientID: testClientID(1)})
	c := b.registry.connection(d.id)
	session, goodbye := helloAnswer(t, b, d, programHello)
	if goodbye {
		t.Fatal("the channel was not kept the second time")
	}
	d.publish(`{"session_id":"` + session + `","type":"goodbye"}`)
	fleettest.Eventually(t, "the channel is closed", func() bool { return b.Stats().Channels == 0 })
	c.mu.Lock()
	c.channel.goodbye = c.channel.goodbye.Add(-time.Minute) // as if it had stayed for a minute
	c.mu.Unlock()
	d.conn.Close()
	fleettest.Eventually(t, "it left again", func() bool { return dom.count("disconnected") == 2 })

	d = connectRaw(t, b, connectPacket{clientID: testClientID(1)})
	if _, goodbye = helloAnswer(t, b, d, programHello); !goodbye {
		t.Error("the channel of a device that stays was kept")
	}
}

func TestHabitShown(t *testing.T) {
	at := time.Date(2026, 8, 8, 8, 0, 0, 0, time.UTC)
	after := func(d time.Duration) time.Time { return at.Add(d) }
	tests := []struct {
		name           string
		hello, goodbye time.Time
		clean          bool
		cause          fleet.Cause
		end            time.Time
		want           dialect.Habit
	}{
		{"no hello, short", time.Time{}, time.Time{}, true, fleet.Cause{}, after(3 * time.Second), dialect.HabitUnknown},
		{"no hello, long", time.Time{}, time.Time{}, true, fleet.Cause{}, after(time.Minute), dialect.HabitStays},
		{"left at goodbye", after(1), after(2), true, fleet.Cause{}, after(time.Second), dialect.HabitLeaves},
		{"stayed after goodbye", after(1), after(2), true, fleet.Cause{}, after(time.Minute), dialect.HabitStays},
		{"lost amid the conversation", after(1), time.Time{}, false, fleet.Cause{Reason: fleet.Because(fleet.CauseNotTaken)}, after(time.Minute), dialect.HabitUnknown},
		{"taken over after goodbye", after(1), after(2), false, link.ErrTakenOver.Cause, after(time.Second), dialect.HabitUnknown},
		{"restarted after a later hello", after(time.Minute), after(time.Minute), true, fleet.Cause{},
			after(time.Minute + time.Second), dialect.HabitUnknown},
	}
	for _, tt := range tests {
		speaks := dialect.XiaozhiMQTT(testID(1))
		c := &connection{established: true, lastHello: tt.hello, dialect: speaks}
		c.At, c.channel.goodbye = at, tt.goodbye
		if !tt.hello.IsZero() {
			speaks.Keep(dialect.Greeting{MCP: true}, dialect.History{Connected: tt.hello.Sub(at)})
		}
		if got := c.habitShown(tt.clean, tt.cause, tt.end); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

// A simulated board gets the usual answer, even if it sends hello right after CONNECT, and keeps
// its MQTT connection.
func TestBoardReturnsToIdle(t *testing.T) {
	b, dom := start(t, nil)
	f := switchOn(t, b, sim.Options{Devices: 1})
	fleettest.Eventually(t, "the device connects", f.Device(0).Connected)
	f.Device(0).Talk()
	fleettest.Eventually(t, "hello is answered", func() bool { return b.Stats().Hellos == 1 })
	fleettest.Eventually(t, "the channel is closed again", func() bool { return !f.Device(0).Talking() })
	if b.Stats().Channels != 0 || strings.Contains(dom.happened(), "disconnected") {
		t.Errorf("%+v\n%s", b.Stats(), dom.happened())
	}
}
