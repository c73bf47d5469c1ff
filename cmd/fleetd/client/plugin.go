package client

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"fleetd/cmd/fleetd/terminal"
)

type PluginCommand struct {
	List   pluginList   `cmd:"" help:"List plug-ins, with what each does now."`
	Show   pluginShow   `cmd:"" help:"Show a plug-in."`
	Log    pluginLog    `cmd:"" help:"Print the latest lines of a plug-in's log."`
	Reload pluginReload `cmd:"" help:"Read the definition of a plug-in again, and start it again now."`
	Add    pluginAdd    `cmd:"" help:"Add a plug-in to the database, and start it."`
	Remove pluginRemove `cmd:"" help:"Stop and remove a plug-in of the database."`
}

func pluginPath(name string) string { return "/plugins/" + url.PathEscape(name) }

type pluginList struct{ clientFlags }

func (c *pluginList) Run(ctx context.Context) error {
	answer, err := c.do(ctx, http.MethodGet, "/plugins", nil)
	if err != nil {
		return err
	}
	if !c.human() {
		return terminal.JSON(answer)
	}
	var all PluginList
	if err := json.Unmarshal(answer, &all); err != nil {
		return err
	}
	var rows [][]string
	for _, p := range all.Items {
		rows = append(rows, []string{p.Name, p.State, cmp.Or(p.File, p.Source), p.ServerName + " " + p.ServerVersion,
			fmt.Sprintf("%d MiB", p.MemoryBytes>>20), cmp.Or(p.Problem, p.Reason)})
	}
	return terminal.Table("NAME STATE FROM SERVER MEMORY REASON", rows)
}

type pluginShow struct {
	clientFlags
	Name string `arg:"" help:"Name of the plug-in."`
}

func (c *pluginShow) Run(ctx context.Context) error {
	return c.showPlugin(c.do(ctx, http.MethodGet, pluginPath(c.Name), nil))
}

// showPlugin prints a plug-in.
func (c *clientFlags) showPlugin(answer json.RawMessage, err error) error {
	if err != nil {
		return err
	}
	if !c.human() {
		return terminal.JSON(answer)
	}
	var p Plugin
	if err := json.Unmarshal(answer, &p); err != nil {
		return err
	}
	rows := [][]string{{"device", p.DeviceID}, {"state", p.State}, {"reason", p.Reason}, {"problem", p.Problem},
		{"from", cmp.Or(p.File, p.Source)}, {"command", strings.Join(append(p.Command, p.Args...), " ")}, {"url", p.URL},
		{"variables", strings.Join(p.Env, " ")}, {"tools", strings.Join(p.Tools, " ")}, {"audience", p.Audience},
		{"server", strings.TrimSpace(p.ServerName + " " + p.ServerVersion)}, {"protocol", p.Protocol},
		{"memory", fmt.Sprintf("%d MiB of %s", p.MemoryBytes>>20, cmp.Or(p.Limits.Memory, "any"))},
		{"processor", (time.Duration(p.CPUMs) * time.Millisecond).String()}, {"starts", fmt.Sprint(p.Starts)}}
	var shown [][]string
	for _, row := range rows {
		if row[1] != "" {
			shown = append(shown, row)
		}
	}
	return terminal.Table("PLUG-IN "+p.Name, shown)
}

type pluginLog struct {
	clientFlags
	Name   string        `arg:"" help:"Name of the plug-in."`
	Follow bool          `short:"f" help:"Print further lines as they come."`
	Every  time.Duration `hidden:"" default:"1s"`
}

func (c *pluginLog) Run(ctx context.Context) error {
	for after := int64(0); ; {
		answer, err := c.do(ctx, http.MethodGet, fmt.Sprintf("%s/log?after=%d", pluginPath(c.Name), after), nil)
		if err != nil {
			return err
		}
		if !c.human() && !c.Follow {
			return terminal.JSON(answer)
		}
		var lines PluginLineList
		if err := json.Unmarshal(answer, &lines); err != nil {
			return err
		}
		for _, l := range lines.Items {
			fmt.Printf("%s %-6s %s\n", l.At.Local().Format(time.DateTime), l.Source, terminal.Printable(l.Text))
			after = l.Number
		}
		if !c.Follow {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(c.Every):
		}
	}
}

type pluginReload struct {
	clientFlags
	Name string `arg:"" help:"Name of the plug-in."`
}

func (c *pluginReload) Run(ctx context.Context) error {
	return c.showPlugin(c.do(ctx, http.MethodPost, pluginPath(c.Name)+"/restart", struct{}{}))
}

type pluginAdd struct {
	clientFlags
	Name        string   `arg:"" help:"Name of the plug-in: lower-case letters, digits, _ and -."`
	Command     []string `arg:"" optional:"" help:"Program in the plug-in directory, such as ./weather, and its arguments: those that begin with - come last, after --."`
	Address     string   `help:"Address of an MCP server over Streamable HTTP, instead of a program." placeholder:"URL"`
	HeadersFile string   `name:"headers-file" help:"File in the plug-in directory with lines Name: value, sent to the address." placeholder:"FILE"`
	Env         []string `help:"Variable NAME=value; can be repeated. Values on a command line can be seen by others: prefer --env-file." placeholder:"NAME=VALUE" sep:"none"`
	EnvFiles    []string `name:"env-file" help:"File in the plug-in directory with lines NAME=value; can be repeated." placeholder:"FILE" sep:"none"`
	Tools       []string `help:"Pattern of tools that are offered; can be repeated. Default: all." placeholder:"PATTERN" sep:"none"`
	Audience    string   `help:"model (people and language models) or user (only people)." enum:"model,user" default:"model"`
	Voice       bool     `help:"Offer its tools to the voice assistants of the boards."`
	Memory      string   `help:"Most memory of all its processes, such as 128MiB." placeholder:"SIZE"`
	CPU         float64  `name:"cpu" help:"Most processor time, in cores." placeholder:"CORES"`
	OpenFiles   int      `name:"open-files" help:"Most open files of each process." placeholder:"N"`
	Disabled    bool     `help:"Do not run it yet."`
}

func (c *pluginAdd) Run(ctx context.Context) error {
	body := map[string]any{"name": c.Name, "audience": c.Audience}
	if c.Address != "" {
		body["url"] = c.Address
	}
	if c.HeadersFile != "" {
		body["headers_file"] = c.HeadersFile
	}
	for key, list := range map[string][]string{"command": c.Command, "env_files": c.EnvFiles, "tools": c.Tools} {
		if len(list) > 0 {
			body[key] = list
		}
	}
	for key, is := range map[string]bool{"offer_to_voice": c.Voice, "disabled": c.Disabled} {
		if is {
			body[key] = true
		}
	}
	env := map[string]string{}
	for _, text := range c.Env {
		name, value, ok := strings.Cut(text, "=")
		if !ok {
			return terminal.UsageError{Err: fmt.Errorf("--env %s: write NAME=value", name)}
		}
		env[name] = value
	}
	if len(env) > 0 {
		body["env"] = env
	}
	limits := map[string]any{}
	if c.Memory != "" {
		limits["memory"] = c.Memory
	}
	if c.CPU != 0 {
		limits["cpu"] = c.CPU
	}
	if c.OpenFiles != 0 {
		limits["open_files"] = c.OpenFiles
	}
	if len(limits) > 0 {
		body["limits"] = limits
	}
	return c.showPlugin(c.do(ctx, http.MethodPost, "/plugins", body))
}

type pluginRemove struct {
	clientFlags
	Name string `arg:"" help:"Name of the plug-in."`
}

func (c *pluginRemove) Run(ctx context.Context) error {
	_, err := c.do(ctx, http.MethodDelete, pluginPath(c.Name), nil)
	return err
}
