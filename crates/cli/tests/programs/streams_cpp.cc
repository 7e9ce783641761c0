// The C++ library's streams: streams-cc FILE
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <unistd.h>

int main(int, char **argv)
{
	std::string file = argv[1], line;
	{
		std::ofstream out(file);
		for (int i = 0; i < 30000; i++)
			out << "line " << i << '\n';
		out.flush();
		std::cout << "written " << out.tellp() << std::endl;
	}
	std::ifstream in(file, std::ios::binary);
	long count = 0;
	while (std::getline(in, line))
		count++;
	in.clear();
	in.seekg(1000);
	in >> line;
	std::cout << count << " lines, " << line << ", at " << in.tellg() << std::endl;
	std::fstream both(file, std::ios::in | std::ios::out);
	both.seekp(500);
	both << "UPDATED";
	both.seekg(495);
	std::getline(both, line);
	std::cout << line << std::endl;
	both.close();
	std::ofstream(file, std::ios::app) << "appended\n";
	in.close();
	in.open(file);
	std::ostringstream all;
	all << in.rdbuf();
	std::cout << all.str().size() << " bytes, ends in "
		  << all.str().substr(all.str().size() - 9);
	std::cerr << "to cerr" << std::endl;
	printf("printf and cout are in step\n");
	std::cout << "in the end\n";
	return 0;
}
