package plugin

import (
	"time"

	"fleetd/fleet"
)

// A Plugin is a plug-in as defined.
type Plugin struct {
	Name     string
	Manifest Manifest
	// File is the manifest's file; "" for a plug-in of the database.
	File string
	// Directory is where relative paths of the manifest begin.
	Directory string
	// Problem is why the plug-in cannot run; zero if it can. A plug-in whose manifest became
	// wrong keeps running with its last correct one.
	Problem fleet.Reason
	// Version counts the changes of a plug-in of the database, from 1.
	Version   int64
	UpdatedBy string // of the database
	UpdatedAt time.Time
}

// Device returns the id of the plug-in's device.
func (p Plugin) Device() fleet.DeviceID { return DeviceOf(p.Name) }

// DeviceOf returns the id of the device of a plug-in.
func DeviceOf(name string) fleet.DeviceID { return fleet.DeviceID(fleet.PluginPrefix + name) }

// A State is what a plug-in does at the moment.
type State string

const (
	Invalid  State = "invalid"  // the manifest is wrong; see Problem
	Disabled State = "disabled" // the manifest says that it does not run
	Starting State = "starting" // it was started, and has not answered initialize yet
	Running  State = "running"
	Waiting  State = "waiting"  // it ended, and is started again at Next
	Crashing State = "crashing" // like waiting, after it ended often
	Stopping State = "stopping"
)

// States lists every state.
var States = []State{Invalid, Disabled, Starting, Running, Waiting, Crashing, Stopping}

// A Status describes a plug-in that a [Runner] runs.
type Status struct {
	State  State
	Since  time.Time
	Next   time.Time    // of Waiting and Crashing: when it is started
	Reason fleet.Reason // why it is not running, or why it ended last; zero if it never did

	PID       int // 0 without a program
	UID       int // of the program; -1 if it runs as the user of fleetd
	Processes int
	Memory    int64         // bytes
	CPU       time.Duration // used since it was started
	Throttled time.Duration // how long the limit of CPU stopped it
	Starts    int           // since fleetd started

	ServerName, ServerVersion string // as it says
	Protocol                  string // version of MCP
	Prompts, Resources        int    // of resources: with templates
}

// A Line is one line of a plug-in's log.
type Line struct {
	Number int64 // increases with each line, also across restarts of fleetd
	At     time.Time
	Source Source
	Text   string
}

// A Source is where a line of the log comes from.
type Source string

const (
	FromStderr Source = "stderr"
	FromStdout Source = "stdout" // not a message of MCP
	FromMCP    Source = "mcp"    // notifications/message
	FromFleetd Source = "fleetd" // starts and ends
)

// Sources lists every source.
var Sources = []Source{FromStderr, FromStdout, FromMCP, FromFleetd}

// Reasons maps the codes that say why a plug-in does not run to the names of their parameters.
// A detail is foreign text.
var Reasons = map[string][]string{
	"plugin_manifest":   {"line", "detail", "limit_bytes"},
	"plugin_field":      {"field", "value", "limit", "from", "to"},
	"plugin_name":       {"value"},
	"plugin_duplicate":  {"file"},
	"plugin_unreadable": {"detail"},
	"plugin_start":      {"detail"}, // the program could not be started, or the address not be reached
	"plugin_initialize": {"detail"}, // it does not speak MCP
	"plugin_ended":      {"detail"}, // the program ended
	"plugin_broke":      {"detail"}, // the connection ended
	"plugin_hung":       {},         // it answered no ping
	"plugin_memory":     {"used_bytes", "limit_bytes"},
	"plugin_processes":  {"used", "limit"},
	"plugin_stopped":    {}, // by fleetd
}
