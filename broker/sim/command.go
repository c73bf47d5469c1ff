package sim

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"
)

// Command is `fleetd sim`, for kong. Its Run blocks until ctx ends.
type Command struct {
	OTAURL      string        `name:"ota-url" default:"http://127.0.0.1:8080/xiaozhi/ota/" placeholder:"URL" help:"Where the devices poll at boot."`
	Devices     int           `default:"25" help:"How many devices."`
	Boards      []string      `default:"bread-compact-wifi,esp-box-3,xmini-c3" help:"Boards, dealt out in turn: bread-compact-wifi, esp-box-3, xmini-c3, atoms3-echo-base, bread-compact-ml307, bread-compact-esp32, custom-cam-s3, lichuang-dev; py-desktop is a program that plays a board."`
	Seed        uint64        `default:"1" help:"The same seed gives the same devices again."`
	Faults      string        `placeholder:"LIST" help:"Misbehaviour as name[=value][:rate], such as silent:2%,slow=2s:5%,cut=50:1%. Names: silent, slow, drop, badjson, flap, noconnect, error; for upgrades silent-accept, no-get, cut, wrong-build, rollback, late-true, poll-without-mqtt, mqtt-without-poll."`
	ConnectRate float64       `default:"500" help:"Devices switched on in a second."`
	Keepalive   time.Duration `help:"MQTT keepalive, in place of the one the server sends."`
	Endpoints   []string      `name:"mqtt-endpoints" placeholder:"HOST:PORT" help:"Addresses behind the MQTT endpoint that the server sends, such as the edges of a cluster; the devices are dealt out over them, and dial the next one after a failure."`
	BootDelay   time.Duration `default:"3s" help:"Time from a restart to the boot poll."`
	TimeScale   float64       `default:"1" help:"Multiplies the firmware's own waits; 0.1 is ten times as fast."`
	FirstMAC    string        `name:"first-mac" placeholder:"MAC" help:"Address of the first device; the others count up."`
	LocalAddrs  []string      `placeholder:"IP" help:"Source addresses to connect from, in turn; one has about 28000 ports."`
	Progress    time.Duration `default:"5s" help:"Time between lines of progress on stderr; 0 for none."`

	TalkEvery time.Duration `default:"2m" help:"How often somebody talks to a program that plays a board, or to a device on a WebSocket, for half of that time."`

	Reports bool `help:"Report on upgrades, as the included firmware does."`

	VoiceServer string `placeholder:"ADDR" help:"Play a voice server at this address, such as 127.0.0.1:8000, in place of devices: it answers each utterance with a tone and sets the volume now and then."`

	Images       string `placeholder:"DIR" help:"Write an app image for each of the boards into this directory, to upload as firmware, and end."`
	ImageVersion string `default:"2.5.0" help:"Version of these images."`
	ImageSize    int    `default:"1500000" help:"Their size in bytes, about."`
}

// writeImages creates firmware that the simulated devices accept.
func (c *Command) writeImages() error {
	if err := os.MkdirAll(c.Images, 0o755); err != nil {
		return err
	}
	for _, board := range c.Boards {
		image, err := AppImage(board, c.ImageVersion, c.ImageSize)
		if err != nil {
			return err
		}
		name := filepath.Join(c.Images, board+"-"+c.ImageVersion+".bin")
		if err := os.WriteFile(name, image, 0o644); err != nil {
			return err
		}
		fmt.Println(name)
	}
	return nil
}

// Run creates the fleet and runs it until ctx ends, with an occasional line of progress on
// stderr.
func (c *Command) Run(ctx context.Context) error {
	if c.Images != "" {
		return c.writeImages()
	}
	if c.VoiceServer != "" {
		return c.playVoiceServer(ctx)
	}
	faults, err := ParseFaults(c.Faults)
	if err != nil {
		return err
	}
	f, err := New(Options{
		OTAURL: c.OTAURL, Devices: c.Devices, Boards: c.Boards, Seed: c.Seed, Faults: faults, ConnectRate: c.ConnectRate,
		Keepalive: c.Keepalive, Endpoints: c.Endpoints, BootDelay: c.BootDelay, TimeScale: c.TimeScale, FirstMAC: c.FirstMAC,
		LocalAddrs: c.LocalAddrs, Reports: c.Reports,
		TalkEvery: c.TalkEvery,
		Logger:    slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	printed := make(chan struct{})
	go func() {
		defer close(printed)
		c.printProgress(ctx, f)
	}()
	err = f.Run(ctx)
	stop()
	<-printed
	return err
}

func (c *Command) playVoiceServer(ctx context.Context) error {
	s, err := ListenVoice(c.VoiceServer)
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "sim: a voice server; start fleetd with --voice-upstream '%s'\n", s.URL())
	return s.Run(ctx)
}

// printProgress prints the fleet's counters every c.Progress, but only when one
// has changed.
func (c *Command) printProgress(ctx context.Context, f *Fleet) {
	last := ""
	for c.Progress > 0 && sleepFor(ctx, c.Progress) {
		if line := f.Stats().String(); line != last {
			fmt.Fprintln(os.Stderr, line)
			last = line
		}
	}
}

// String returns the counters as one line of text for a person.
func (s Stats) String() string {
	line := fmt.Sprintf("sim: %d devices, %d booted, %d connected, %d calls", s.Devices, s.Booted, s.Connected, s.Calls)
	for _, extra := range []struct {
		n    int64
		what string
	}{
		{s.Activating, "waiting for activation"}, {s.PollFailures, "polls failed"}, {s.ConnectFailures, "connects failed"},
		{s.Reboots, "reboots"}, {s.Upgrades, "upgrades"}, {s.UpgradesFailed, "upgrades failed"}, {s.Rollbacks, "rollbacks"},
		{s.Crashes, "crashes"},
	} {
		if extra.n > 0 {
			line += fmt.Sprintf(", %d %s", extra.n, extra.what)
		}
	}
	return line
}
