// Command fleetd runs a fleet of devices that are MCP servers: an MQTT broker, a
// registry in PostgreSQL, an operator console and a REST interface in one process.
// Its other commands manage a running server.
//
// This package only parses the command line: the server is package server, the
// commands over REST are package client. Tests that need a process to kill, or that
// cover the whole repository (dependencies, documents), are here.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"fleetd/cmd/fleetd/bridge"
	"fleetd/cmd/fleetd/client"
	"fleetd/cmd/fleetd/server"
	"fleetd/cmd/fleetd/terminal"
	"fleetd/fleet"
	"fleetd/web/i18n"
)

// version is set at build time: -ldflags "-X main.version=1.2.3".
var version = "dev"

// Exit codes that scripts may rely on.
const (
	exitFailed = 1
	exitUsage  = 2
)

type cli struct {
	Serve     serveCommand            `cmd:"" default:"withargs" help:"Run the server (the default command)."`
	Sim       simCommand              `cmd:"" help:"Run simulated devices against a server."`
	Migrate   server.MigrateCommand   `cmd:"" help:"Migrate the database to this version's schema and exit."`
	User      server.UserCommand      `cmd:"" help:"Manage operators, directly in the server's database."`
	Token     server.TokenCommand     `cmd:"" help:"Manage API tokens, directly in the server's database."`
	Key       server.KeyCommand       `cmd:"" help:"Rotate the key that signs device credentials, directly in the server's database."`
	Cluster   clusterCommand          `cmd:"" help:"Create a cluster and the certificates of its nodes, as files; show its nodes over REST."`
	Serial    client.SerialCommand    `cmd:"" help:"Load and manage serial numbers and their HMAC keys over REST."`
	Device    client.DeviceCommand    `cmd:"" help:"List, show, call and manage devices over REST."`
	Call      client.CallCommand      `cmd:"" help:"List calls and cancel waiting ones over REST."`
	Schedule  client.ScheduleCommand  `cmd:"" help:"Repeat calls to many devices at planned times over REST."`
	LogStream client.LogStreamCommand `cmd:"" help:"Send the sealed record to other systems over REST."`
	Redaction client.RedactionCommand `cmd:"" help:"Keep values in arguments of calls out of the record, over REST."`
	Devices   client.DevicesCommand   `cmd:"" help:"Tag, hold, release and retire many devices at once over REST."`
	Image     client.ImageCommand     `cmd:"" help:"Upload and manage firmware images over REST."`
	Release   client.ReleaseCommand   `cmd:"" help:"Create and manage releases over REST."`
	Campaign  client.CampaignCommand  `cmd:"" help:"Plan, start and control firmware campaigns over REST."`
	Plugin    client.PluginCommand    `cmd:"" aliases:"plugins" help:"Manage plug-ins over REST."`
	Upstream  client.UpstreamCommand  `cmd:"" help:"Manage voice servers and the devices that use them over REST."`
	Tool      client.ToolCommand      `cmd:"" help:"List the tools of the fleet, compare their definitions and release them over REST."`
	Policy    client.PolicyCommand    `cmd:"" help:"List policy rules and test calls against them over REST."`
	MCP       bridge.Command          `cmd:"" name:"mcp" help:"Connect a local MCP client to a server over standard input and output."`
	Snapshot  client.SnapshotCommand  `cmd:"" aliases:"snapshots" help:"List and download pictures of screens and cameras over REST."`
	History   client.HistoryCommand   `cmd:"" help:"Show what the fleet was at a past moment over REST."`
	Changes   client.ChangesCommand   `cmd:"" help:"Sum up what happened to the fleet lately over REST."`
	Place     client.PlaceCommand     `cmd:"" aliases:"places" help:"List places, such as sites and rooms, with figures of their devices over REST."`

	Conversations client.ConversationsCommand `cmd:"" help:"List conversations of devices with voice servers over REST."`
	Approval      client.ApprovalCommand      `cmd:"" help:"List, approve and deny calls that need approval over REST."`
	Audit         client.AuditCommand         `cmd:"" help:"Verify the sealed record, and prove entries of it, over REST."`
	Alerts        client.AlertsCommand        `cmd:"" help:"List and acknowledge alerts over REST."`
	System        client.SystemCommand        `cmd:"" help:"Show the server's status and components over REST."`
	Config        server.ConfigCommand        `cmd:"" help:"Check or print the server's configuration."`
	Version       versionCommand              `cmd:"" help:"Print the version."`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	os.Exit(run(ctx, os.Args[1:]))
}

func run(ctx context.Context, args []string) int {
	var c cli
	parser, err := kong.New(&c,
		kong.Name("fleetd"),
		kong.Description("MQTT-native fleet management for ESP32 devices that speak MCP."),
		kong.UsageOnError(),
		kong.BindTo(ctx, (*context.Context)(nil)),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
	)
	if err != nil {
		panic(err) // a mistake in the command structs
	}
	command, err := parser.Parse(args)
	if err != nil {
		fmt.Fprintf(os.Stderr, "fleetd: %v\nTry fleetd --help.\n", err)
		return exitUsage
	}
	return exitCode(command.Run())
}

func exitCode(err error) int {
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, "fleetd:", sentence(err))
	var ofServer server.UsageError
	var ofClient terminal.UsageError
	if errors.As(err, &ofServer) || errors.As(err, &ofClient) {
		return exitUsage
	}
	return exitFailed
}

// sentence returns the text of an error for a terminal, with the text of a refusal
// in place of its code.
func sentence(err error) string {
	refusal, ok := errors.AsType[*fleet.Error](err)
	if !ok {
		return err.Error()
	}
	return strings.Replace(err.Error(), refusal.Error(), i18n.ErrorDetail(refusal), 1)
}

type serveCommand struct{ server.Config }

// Run serves until ctx ends or a part fails.
func (c *serveCommand) Run(ctx context.Context) error {
	c.Version = buildVersion()
	return server.Run(ctx, c.Config, os.Stdout)
}

// clusterCommand joins the commands on the files of a cluster with that on a running one.
type clusterCommand struct {
	server.ClusterCommand
	Status client.ClusterStatus `cmd:"" help:"Show the nodes of the cluster, and which core leads, over REST."`
	Drain  client.DrainNode     `cmd:"" help:"Move the devices of an edge to other edges, or let another core lead, before the node is stopped, over REST."`
}

type versionCommand struct{}

func (versionCommand) Run() error {
	fmt.Println(buildVersion())
	return nil
}

// buildVersion returns the released version, or the commit of the build.
func buildVersion() string {
	info, ok := debug.ReadBuildInfo()
	if version != "dev" || !ok {
		return version
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 {
			return "dev-" + s.Value[:12]
		}
	}
	return version
}
