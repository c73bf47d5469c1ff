// Command bench measures fleetd and its yardsticks in the same run: Mosquitto's
// raw echo, PostgreSQL's single-row commits, a bare net/http and a bare mochi. It
// prints a table with the speed targets; make bench writes it to
// bench/RESULTS.md.
//
// fleetd is the program fleetd serve, a child that gets its load through REST;
// "in process" is [server.Start] in this process. The devices are a child, too.
// The command keeps no state between runs.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/alecthomas/kong"
)

type cli struct {
	Run     runCommand     `cmd:"" default:"withargs" help:"Measure everything, print and write the tables."`
	Call    callCommand    `cmd:"" help:"Measure one way to make calls, for a few seconds."`
	Devices devicesCommand `cmd:"" hidden:"" help:"Play devices; used by run and call."`
	Bare    bareCommand    `cmd:"" hidden:"" help:"Answer requests with net/http alone; used by run and call."`

	Scale scaleCommand `cmd:"" help:"Measure the pages and the record of a large fleet with a year of calls."`

	Downloads downloadsCommand `cmd:"" help:"Measure the memory that many firmware downloads take at once."`
	Fetch     fetchCommand     `cmd:"" hidden:"" help:"Play downloading devices; used by downloads."`

	Plugin        pluginCommand `cmd:"" help:"Measure calls of a plug-in through /mcp, beside a client that runs the same program."`
	PluginProgram pluginProgram `cmd:"" hidden:"" help:"Play a plug-in; used by plugin."`

	MQTT5        mqtt5Command        `cmd:"" name:"mqtt5" help:"Measure the memory that a device of MCP over MQTT 5 takes, beside a xiaozhi one."`
	MQTT5Devices mqtt5DevicesCommand `cmd:"" name:"mqtt5-devices" hidden:"" help:"Play devices of MCP over MQTT 5; used by mqtt5."`

	Cluster        clusterCommand        `cmd:"" help:"Kill a core and an edge of a cluster with many devices, and check every call."`
	ClusterDevices clusterDevicesCommand `cmd:"" name:"cluster-devices" hidden:"" help:"Play devices of a cluster; used by cluster."`

	Voice       voiceCommand       `cmd:"" help:"Measure conversations through fleetd, beside a plain UDP echo."`
	VoiceServer voiceServerCommand `cmd:"" hidden:"" help:"Play a voice server; used by run and voice."`
}

type runCommand struct {
	serveOptions
	Rounds   int           `help:"How many rounds; a figure is their median." default:"5"`
	Duration time.Duration `help:"Length of one measurement." default:"3s"`
	Fleet    int           `help:"Devices in fan-outs and storms." default:"10000"`
	Profile  bool          `help:"Also measure what one call costs; takes three minutes."`
	Output   string        `help:"Also write the tables to this file." placeholder:"FILE"`
	JSON     string        `name:"json" help:"Also write the figures to this file, for --compare." placeholder:"FILE"`
	Compare  string        `help:"Print the change of each figure since the run of this file of --json." placeholder:"FILE"`
}

type devicesCommand struct{}

func (devicesCommand) Run() error { return runDevices() }

// Run does all rounds, however long they take, and writes the results at the end.
func (c *runCommand) Run(ctx context.Context) error {
	var old storedRun
	if c.Compare != "" {
		var err error
		if old, err = readRun(c.Compare); err != nil { // now, because --json may overwrite it
			return err
		}
	}
	dir, err := os.MkdirTemp("", "fleetd-bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	child, err := startDevices()
	if err != nil {
		return err
	}
	defer child.stop()
	s := &suite{serving: c.serveOptions, duration: c.Duration, devices: c.Fleet, dir: dir, child: child}
	var rounds []round
	for i := range c.Rounds {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		r, err := s.round(ctx)
		if err != nil {
			return fmt.Errorf("round %d: %w", i+1, err)
		}
		fmt.Fprintf(os.Stderr, "round %d of %d: %v\n", i+1, c.Rounds, r)
		rounds = append(rounds, r)
	}
	var costs []namedCost
	var top string
	if c.Profile {
		if costs, top, err = s.profile(ctx); err != nil {
			return err
		}
	}
	var text strings.Builder
	report(&text, rounds, costs, top, s, fmt.Sprintf("make bench ROUNDS=%d", c.Rounds))
	fmt.Print(text.String())
	now := figures(rounds, costs)
	if c.Compare != "" {
		fmt.Println()
		compare(os.Stdout, old, now)
	}
	if c.JSON != "" {
		if err := writeRun(c.JSON, now, len(rounds)); err != nil {
			return err
		}
	}
	if c.Output == "" {
		return nil
	}
	return os.WriteFile(c.Output, []byte(text.String()+keptFigures(c.Output)), 0o644)
}

// keptHeading begins the section of figures from other commands.
const keptHeading = "## By other commands"

// keptFigures returns that section of the file that will be overwritten.
func keptFigures(name string) string {
	old, _ := os.ReadFile(name) // the file may not exist
	_, kept, found := strings.Cut(string(old), keptHeading)
	if !found {
		return ""
	}
	return "\n" + keptHeading + kept
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	command := kong.Parse(&cli{}, kong.BindTo(ctx, (*context.Context)(nil)))
	command.FatalIfErrorf(command.Run())
}
