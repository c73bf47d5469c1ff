// Command bench measures fleetd and what it is compared with, in the same
// run: Mosquitto's raw echo, PostgreSQL's single-row commits, and a bare mochi.
// It prints a table against the speed targets and writes bench/RESULTS.md.
//
// The server is [server.Start] in this process, the devices that load it are a
// child. It measures over sockets, and keeps no state between runs.
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
	Run     runCommand     `cmd:"" default:"withargs" help:"Measure, print and write the table."`
	Profile profileCommand `cmd:"" help:"Profile in-process calls."`
	Devices devicesCommand `cmd:"" hidden:"" help:"Play devices; used by run."`

	Downloads downloadsCommand `cmd:"" help:"Measure the memory that many firmware downloads take at once."`
	Fetch     fetchCommand     `cmd:"" hidden:"" help:"Play downloading devices; used by downloads."`
}

type runCommand struct {
	Rounds   int           `help:"How many rounds; a figure is their median." default:"5"`
	Duration time.Duration `help:"Length of one measurement." default:"3s"`
	Fleet    int           `help:"Devices in fan-outs and storms." default:"10000"`
	Output   string        `help:"Where to write the table." default:"bench/RESULTS.md"`
}

type devicesCommand struct{}

func (devicesCommand) Run() error { return runDevices() }

// Run does all rounds even if it takes long, and writes at the end.
func (c *runCommand) Run(ctx context.Context) error {
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
	s := &suite{duration: c.Duration, devices: c.Fleet, dir: dir, child: child}
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
	kept := keptFigures(c.Output)
	out, err := os.Create(c.Output)
	if err != nil {
		return err
	}
	defer out.Close()
	defer func() { _, _ = out.WriteString(kept) }()
	command := fmt.Sprintf("make bench ROUNDS=%d", c.Rounds)
	report(os.Stdout, rounds, s, command)
	report(out, rounds, s, command)
	return nil
}

// keptHeading begins the figures that other commands measured.
const keptHeading = "## By other commands"

// keptFigures are those of the file that is about to be overwritten.
func keptFigures(name string) string {
	old, _ := os.ReadFile(name) // there may be none
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
