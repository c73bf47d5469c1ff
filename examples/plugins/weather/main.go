// Command weather is a plug-in with two tools: get_weather and list_cities.
//
// It shows tools with typed arguments and results. The SDK derives the JSON
// schemas from the Go types, and checks arguments and results against them. An
// error that a handler returns becomes a tool error: its text is for the language
// model, so it says how to do better.
//
// The answers come from cities.json: approximate monthly averages in whole degrees.
package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"log"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

//go:embed cities.json
var citiesJSON []byte

type cityName struct {
	Name    string `json:"name" jsonschema:"English name"`
	Chinese string `json:"chinese" jsonschema:"Chinese name"`
}

type city struct {
	cityName
	Temperatures [12]int `json:"temperatures" jsonschema:"averages of January to December in degrees Celsius"`
}

type weatherIn struct {
	City string `json:"city" jsonschema:"name of a city, in English or Chinese"`
}

type weatherOut struct {
	city
	Month       string `json:"month" jsonschema:"the current month"`
	Temperature int    `json:"temperature" jsonschema:"average of the current month in degrees Celsius"`
}

type citiesOut struct {
	Cities []cityName `json:"cities"`
}

func main() {
	var cities []city
	if err := json.Unmarshal(citiesJSON, &cities); err != nil {
		log.Fatal(err) // to standard error; standard output carries the protocol
	}
	names := make([]cityName, len(cities))
	known := make([]string, len(cities))
	for i, c := range cities {
		names[i] = c.cityName
		known[i] = c.Name + " (" + c.Chinese + ")"
	}

	server := mcp.NewServer(&mcp.Implementation{Name: "weather", Version: "1.0.0"}, nil)
	readOnly := &mcp.ToolAnnotations{ReadOnlyHint: true, OpenWorldHint: new(false)}
	mcp.AddTool(server, &mcp.Tool{
		Name: "get_weather", Title: "Weather of a city", Annotations: readOnly,
		Description: "Returns the average temperature of a city, for the current month and for each month.",
	}, func(_ context.Context, _ *mcp.CallToolRequest, in weatherIn) (*mcp.CallToolResult, weatherOut, error) {
		name := strings.TrimSuffix(strings.TrimSpace(in.City), "市")
		for _, c := range cities {
			if strings.EqualFold(name, c.Name) || name == c.Chinese {
				month := time.Now().Month()
				return nil, weatherOut{c, month.String(), c.Temperatures[month-1]}, nil
			}
		}
		return nil, weatherOut{}, fmt.Errorf("unknown city %q; use one of: %s", in.City, strings.Join(known, ", "))
	})
	mcp.AddTool(server, &mcp.Tool{
		Name: "list_cities", Title: "Cities with weather", Annotations: readOnly,
		Description: "Lists the cities that get_weather knows, in English and Chinese.",
	}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, citiesOut, error) {
		return nil, citiesOut{names}, nil
	})

	if err := server.Run(context.Background(), &mcp.StdioTransport{}); err != nil {
		log.Fatal(err)
	}
}
