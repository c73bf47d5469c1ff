package gateway

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"fleetd/fleet"
	"fleetd/fleet/call"
)

// AddFixtures adds the tools, resources and prompts that the conformance suite uses
// to the server of the fleet: they go through the same checks, sessions and
// encoding as the gateway's own. The resource that the suite subscribes to is the
// status of a device.
func (g *Gateway) AddFixtures(watched fleet.DeviceID) {
	g.addFixtureTools()
	g.addFixtureResources(watched)
	g.addFixturePrompts()
}

type nothing struct{}

const (
	inlined = "test://embedded-resource"
	png     = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
)

func pictureOf() *mcp.ImageContent {
	data, err := base64.StdEncoding.DecodeString(png)
	if err != nil {
		panic(err)
	}
	return &mcp.ImageContent{Data: data, MIMEType: "image/png"}
}

func embedded(uri string) *mcp.EmbeddedResource {
	return &mcp.EmbeddedResource{Resource: &mcp.ResourceContents{URI: uri, MIMEType: "text/plain", Text: "text"}}
}

func (g *Gateway) addFixtureTools() {
	s := g.fleet
	fixture := func(name string, do func(ctx context.Context, req *mcp.CallToolRequest) (answer, error)) {
		add[nothing, nothing](g, s, definition{name: name, models: fleet.ModelsMay, effect: reads, about: "a fixture"},
			func(ctx context.Context, _ fleet.Principal, req *mcp.CallToolRequest, _ nothing) (answer, error) {
				a, err := do(ctx, req)
				if a.asks == nil {
					a.out = nothing{}
				}
				return a, err
			})
	}
	gives := func(name string, a answer) {
		fixture(name, func(context.Context, *mcp.CallToolRequest) (answer, error) { return a, nil })
	}
	gives("test_simple_text", answer{text: "This is a simple text response for testing."})
	gives("test_image_content", answer{text: "a picture", more: []mcp.Content{pictureOf()}})
	gives("test_embedded_resource", answer{text: "a resource", more: []mcp.Content{embedded(inlined)}})
	gives("test_multiple_content_types", answer{text: "three of them",
		more: []mcp.Content{pictureOf(), embedded("test://mixed-content-resource")}})
	fixture("test_error_handling", func(context.Context, *mcp.CallToolRequest) (answer, error) {
		return answer{}, fleet.Refuse(fleet.ErrNotFound, "mcp_no_snapshot", "device", "any device")
	})
	fixture("test_tool_with_logging", func(ctx context.Context, req *mcp.CallToolRequest) (answer, error) {
		for i := range 3 {
			say(ctx, req.Session, levelInfo, logLine{Event: "fixture", Text: fmt.Sprintf("step %d", i)})
			time.Sleep(20 * time.Millisecond) // the suite expects messages while the tool runs
		}
		return answer{text: "done"}, nil
	})
	fixture("test_tool_with_progress", func(ctx context.Context, req *mcp.CallToolRequest) (answer, error) {
		for _, done := range []int{0, 50, 100} {
			reportFanOut(ctx, req, req.Params.GetProgressToken(), call.FanOut{Targets: 100}, done)
			time.Sleep(20 * time.Millisecond) // as above
		}
		return answer{text: "done"}, nil
	})
	asks := func(name, schema string) {
		add[struct {
			Message string `json:"message,omitempty"`
		}, nothing](g, s, definition{name: name, models: fleet.ModelsMay, effect: reads, about: "a fixture"},
			func(_ context.Context, _ fleet.Principal, req *mcp.CallToolRequest, in struct {
				Message string `json:"message,omitempty"`
			}) (answer, error) {
				if r, is := req.Params.InputResponses["form"].(*mcp.ElicitResult); is {
					content, err := json.Marshal(r.Content)
					return answer{text: "action=" + r.Action + " content=" + string(content), out: nothing{}}, err
				}
				if elicitation(req) == nil {
					return answer{}, errors.New("the client has no forms")
				}
				return answer{asks: mcp.InputRequestMap{"form": &mcp.ElicitParams{Mode: "form", Message: "for the suite " + in.Message,
					RequestedSchema: json.RawMessage(schema)}}}, nil
			})
	}
	asks("test_elicitation", `{"type":"object","properties":{"username":{"type":"string","description":"name"},
		"email":{"type":"string","description":"address"}},"required":["username","email"]}`)
	asks("test_elicitation_sep1034_defaults", `{"type":"object","properties":{"name":{"type":"string","default":"John Doe"},
		"age":{"type":"integer","default":30},"score":{"type":"number","default":95.5},
		"status":{"type":"string","enum":["active","inactive","pending"],"default":"active"},
		"verified":{"type":"boolean","default":true}}}`)
	asks("test_elicitation_sep1330_enums", `{"type":"object","properties":{
		"untitledSingle":{"type":"string","enum":["option1","option2","option3"]},
		"titledSingle":{"type":"string","oneOf":[{"const":"value1","title":"First"},{"const":"value2","title":"Second"},{"const":"value3","title":"Third"}]},
		"legacyEnum":{"type":"string","enum":["opt1","opt2","opt3"],"enumNames":["Option One","Option Two","Option Three"]},
		"untitledMulti":{"type":"array","minItems":1,"maxItems":3,"items":{"type":"string","enum":["option1","option2","option3"]}},
		"titledMulti":{"type":"array","minItems":1,"maxItems":3,"items":{"anyOf":[{"const":"value1","title":"First"},{"const":"value2","title":"Second"},{"const":"value3","title":"Third"}]}}}}`)

	// The schema of a device, as the servers of devices list it.
	listed := fleet.Tool{Name: "json_schema_2020_12_tool", InputSchema: json.RawMessage(`{
		"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object","$defs":{"address":{"type":"object",
		"properties":{"street":{"type":"string"},"city":{"type":"string"}}}},"properties":{"name":{"type":"string"},
		"address":{"$ref":"#/$defs/address"}},"additionalProperties":false}`)}
	s.AddTool(&mcp.Tool{Name: listed.Name, Description: "a fixture", InputSchema: raw(plainSchema(listed))},
		func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return answer{text: "done"}.result()
		})
}

func (g *Gateway) addFixtureResources(watched fleet.DeviceID) {
	s := g.fleet
	read := func(c mcp.ResourceContents) mcp.ResourceHandler {
		return func(_ context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
			c := c
			c.URI = req.Params.URI
			return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{&c}}, nil
		}
	}
	s.AddResource(&mcp.Resource{URI: "test://static-text", Name: "text"},
		read(mcp.ResourceContents{MIMEType: "text/plain", Text: "This is the content of the static text resource."}))
	s.AddResource(&mcp.Resource{URI: "test://static-binary", Name: "binary"},
		read(mcp.ResourceContents{MIMEType: "image/png", Blob: pictureOf().Data}))
	s.AddResourceTemplate(&mcp.ResourceTemplate{URITemplate: "test://template/{id}/data", Name: "template"},
		read(mcp.ResourceContents{MIMEType: "application/json", Text: `{"id":"123","templateTest":true,"data":"Data for ID: 123"}`}))
	s.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			status := "device://" + string(watched) + "/" + resourceStatus
			switch p := req.GetParams().(type) {
			case *mcp.SubscribeParams:
				p.URI = status
			case *mcp.UnsubscribeParams:
				p.URI = status
			}
			return next(ctx, method, req)
		}
	})
}

func (g *Gateway) addFixturePrompts() {
	says := func(name string, arguments []*mcp.PromptArgument, content func(args map[string]string) mcp.Content) {
		g.fleet.AddPrompt(&mcp.Prompt{Name: name, Description: "a fixture", Arguments: arguments},
			func(_ context.Context, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
				return &mcp.GetPromptResult{Messages: []*mcp.PromptMessage{{Role: "user", Content: content(req.Params.Arguments)},
					{Role: "user", Content: &mcp.TextContent{Text: "Look at it."}}}}, nil
			})
	}
	says("test_simple_prompt", nil, func(map[string]string) mcp.Content { return &mcp.TextContent{Text: "a prompt"} })
	says("test_prompt_with_arguments", []*mcp.PromptArgument{{Name: "arg1", Required: true}, {Name: "arg2", Required: true}},
		func(args map[string]string) mcp.Content {
			return &mcp.TextContent{Text: fmt.Sprintf("arg1='%s', arg2='%s'", args["arg1"], args["arg2"])}
		})
	says("test_prompt_with_embedded_resource", []*mcp.PromptArgument{{Name: "resourceUri", Required: true}},
		func(args map[string]string) mcp.Content { return embedded(args["resourceUri"]) })
	says("test_prompt_with_image", nil, func(map[string]string) mcp.Content { return pictureOf() })
}
