package mcp_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fleetd/mcp"
)

type listVectors struct {
	About string
	Cases []struct {
		Name  string
		Pages []struct {
			Request, Reply string
			NextCursor     *string `json:"next_cursor"`
			ResultBytes    int     `json:"result_bytes"`
		}
		Expect struct {
			Tools        *int
			UserOnly     int `json:"user_only"`
			Names        []string
			ErrorMessage string `json:"error_message"`
			MustNotLoop  bool   `json:"must_not_loop"`
			KeepEarlier  bool   `json:"keep_tools_of_earlier_pages"`
		}
	}
}

func TestToolsListVectors(t *testing.T) {
	var file listVectors
	loadVectors(t, "tools_list_paged.json", &file)
	for _, tt := range file.Cases {
		if tt.Expect.Tools == nil {
			continue
		}
		t.Run(tt.Name, func(t *testing.T) {
			first := parseRequest(t, tt.Pages[0].Request).Payload
			var requests, answers []string
			for _, p := range tt.Pages {
				requests = append(requests, p.Request)
				answers = append(answers, p.Reply)
			}
			s, d := connect(mcp.SessionOptions{IDs: mcp.NewIDs(first.ID - 1)}, replies(answers...))
			tools, err := s.ListTools(t.Context(), mcp.ListToolsParams{WithUserTools: first.Params.WithUserTools})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(requests, d.sent); diff != "" {
				t.Errorf("requests (-want +sent):\n%s", diff)
			}
			userOnly, names := 0, []string(nil)
			for _, tool := range tools {
				names = append(names, tool.Name)
				if tool.UserOnly() {
					userOnly++
				}
			}
			if len(tools) != *tt.Expect.Tools || userOnly != tt.Expect.UserOnly {
				t.Errorf("%d tools, %d user-only, want %d, %d", len(tools), userOnly, *tt.Expect.Tools, tt.Expect.UserOnly)
			}
			if diff := cmp.Diff(tt.Expect.Names, names); tt.Expect.Names != nil && diff != "" {
				t.Error(diff)
			}
		})
	}
}

// The tools of earlier pages are kept when a later page fails.
func TestToolsListKeepsEarlierPages(t *testing.T) {
	const firstPage = `{"type":"mcp","payload":{"jsonrpc":"2.0","id":%d,"result":{"tools":[{"name":"self.a","inputSchema":{"type":"object"}}],"nextCursor":"%s"}}}`
	var file listVectors
	loadVectors(t, "tools_list_paged.json", &file)
	checked := 0
	for _, tt := range file.Cases {
		if tt.Expect.ErrorMessage == "" {
			continue
		}
		checked++
		t.Run(tt.Name, func(t *testing.T) {
			second := parseRequest(t, tt.Pages[0].Request).Payload
			s, d := connect(mcp.SessionOptions{IDs: mcp.NewIDs(second.ID - 2)},
				replies(fmt.Sprintf(firstPage, second.ID-1, second.Params.Cursor), tt.Pages[0].Reply))
			tools, err := s.ListTools(t.Context(), mcp.ListToolsParams{})
			e, ok := errors.AsType[*mcp.Error](err)
			if !ok || e.Message != tt.Expect.ErrorMessage || len(tools) != 1 || tools[0].Name != "self.a" {
				t.Errorf("ListTools = %v, %v, want self.a and %q", tools, err, tt.Expect.ErrorMessage)
			}
			if len(d.sent) != 2 || d.sent[1] != tt.Pages[0].Request {
				t.Errorf("sent %q, want its end %q", d.sent, tt.Pages[0].Request)
			}
		})
	}
	if checked != 2 {
		t.Errorf("%d vectors checked, want 2", checked)
	}
}

func TestToolsListDoesNotLoop(t *testing.T) {
	var file listVectors
	loadVectors(t, "tools_list_paged.json", &file)
	checked := 0
	for _, tt := range file.Cases {
		if !tt.Expect.MustNotLoop || tt.Expect.ErrorMessage != "" {
			continue
		}
		checked++
		t.Run(tt.Name, func(t *testing.T) {
			var answers []string
			for _, p := range tt.Pages {
				answers = append(answers, p.Reply)
			}
			s, d := connect(mcp.SessionOptions{IDs: mcp.NewIDs(41)}, replies(answers...))
			tools, err := s.ListTools(t.Context(), mcp.ListToolsParams{})
			if !errors.Is(err, mcp.ErrMalformed) || len(tools) != 1 || len(d.sent) != 2 {
				t.Errorf("ListTools = %d tools, %v after %d requests, want 1, ErrMalformed, 2", len(tools), err, len(d.sent))
			}
		})
	}
	if checked == 0 {
		t.Error("no hostile vector checked")
	}
}
