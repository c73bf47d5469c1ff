package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"fleetd/cmd/fleetd/terminal"
)

type PolicyCommand struct {
	List policyList `cmd:"" help:"List the rules that judge calls, in order."`
	Test policyTest `cmd:"" help:"Show how the policy would decide on a call, and by which rule. Nothing is sent."`
}

type policyList struct{ clientFlags }

func (c *policyList) Run(ctx context.Context) error {
	answer, err := c.do(ctx, http.MethodGet, "/policies", nil)
	if err != nil {
		return err
	}
	if !c.human() {
		return terminal.JSON(answer)
	}
	var all PolicyList
	if err := json.Unmarshal(answer, &all); err != nil {
		return err
	}
	var rows [][]string
	for i, p := range all.Items {
		state := "enabled"
		switch {
		case p.Fixed:
			state = "fixed"
		case !p.Enabled:
			state = "disabled"
		}
		rows = append(rows, []string{strconv.Itoa(i), p.ID, p.Name, p.Decision, state})
	}
	if err := terminal.Table("PLACE ID NAME DECISION STATE", rows); err != nil {
		return err
	}
	fmt.Println("\nAny other call: " + all.Otherwise)
	for _, p := range all.Items {
		for _, w := range p.Warnings {
			fmt.Printf("%s: %s (%s)\n", terminal.Printable(p.Name), terminal.Printable(w.Detail), w.Code)
		}
	}
	return nil
}

type policyTest struct {
	clientFlags
	Tool      string `arg:"" help:"Name of the tool."`
	Arguments string `arg:"" optional:"" help:"Arguments as a JSON object." default:"{}"`
	Device    string `help:"Device to call." xor:"on"`
	Query     string `short:"q" help:"Filter of the devices to call. Default: all devices in service." xor:"on"`
	Kind      string `help:"Kind of the caller." enum:"operator,program,model,voice,campaign,system" default:"model"`
	Role      string `help:"Role of the caller." enum:"viewer,operator,admin" default:"operator"`
	Name      string `help:"Name of the caller."`
	TokenID   string `name:"token-id" help:"Id of a token to use as the caller."`
	Operator  string `name:"operator-id" help:"Id of an operator to use as the caller."`
}

func (c *policyTest) Run(ctx context.Context) error {
	arguments := json.RawMessage(c.Arguments)
	if !json.Valid(arguments) {
		return terminal.UsageError{Err: fmt.Errorf("arguments are not JSON: %s", c.Arguments)}
	}
	principal := map[string]string{"kind": c.Kind, "role": c.Role, "name": c.Name}
	if c.TokenID != "" {
		principal = map[string]string{"token_id": c.TokenID}
	} else if c.Operator != "" {
		principal = map[string]string{"operator_id": c.Operator}
	}
	answer, err := c.do(ctx, http.MethodPost, "/policies/test", map[string]any{"principal": principal, "tool": c.Tool,
		"arguments": arguments, "device": c.Device, "q": c.Query})
	if err != nil {
		return err
	}
	if !c.human() {
		return terminal.JSON(answer)
	}
	var trial Trial
	if err := json.Unmarshal(answer, &trial); err != nil {
		return err
	}
	var rows [][]string
	for _, d := range trial.Items {
		rule := "-"
		if d.Rule != nil {
			rule = d.Rule.Name
		}
		var codes []string
		for _, r := range d.Refusals {
			codes = append(codes, r.Code)
		}
		rows = append(rows, []string{d.DeviceID, d.Outcome, d.Verdict, rule, strings.Join(codes, ",")})
	}
	if err := terminal.Table("DEVICE OUTCOME VERDICT RULE REFUSALS", rows); err != nil {
		return err
	}
	if len(trial.Items) == 1 && trial.Items[0].Bytes != nil {
		b := trial.Items[0].Bytes
		fmt.Printf("\n%s\nid: %s\n", terminal.Printable(b.Message), b.IDIs)
	}
	return nil
}
