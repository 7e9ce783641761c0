// What the C++ library does with files: library NAME
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <iterator>
#include <locale>
#include <set>
#include <sstream>
#include <string>
#include <unistd.h>

namespace fs = std::filesystem;

static std::string file;

static void put(const std::string &name, const std::string &text)
{
	std::ofstream(name, std::ios::binary) << text;
}

static std::string get(const std::string &name)
{
	std::ifstream in(name, std::ios::binary);
	return std::string(std::istreambuf_iterator<char>(in), {});
}

static void open_modes()
{
	using std::ios;
	const ios::openmode all[] = {
		ios::in, ios::out, ios::app, ios::in | ios::out, ios::in | ios::app, ios::out | ios::app,
		ios::out | ios::trunc, ios::in | ios::out | ios::trunc, ios::in | ios::out | ios::app,
		ios::in | ios::trunc, ios::trunc, ios::app | ios::trunc, ios::ate | ios::in,
		ios::ate | ios::in | ios::out, ios::ate | ios::out, ios::binary | ios::in | ios::out | ios::ate,
	};
	int number = 0;
	for (ios::openmode mode : all)
		for (int missing = 0; missing < 2; missing++) {
			if (missing)
				fs::remove(file);
			else
				put(file, "twelve bytes");
			std::fstream stream(file, mode);
			std::cout << number << ' ' << missing << ": " << stream.is_open() << " at " << stream.tellg() << ' ' << stream.tellp();
			std::string word;
			stream >> word;
			std::cout << " read " << word << " state " << stream.rdstate();
			stream.clear();
			stream.seekp(0, ios::cur);
			stream << "++";
			stream.flush();
			std::cout << " state " << stream.rdstate() << " at " << stream.tellp();
			stream.clear();
			stream.close();
			std::cout << " closed " << stream.rdstate() << ", " << get(file) << '\n';
			number += missing;
		}
}

static void positions()
{
	std::fstream stream(file, std::ios::in | std::ios::out | std::ios::trunc);
	for (int i = 0; i < 20000; i++)
		stream << std::setw(6) << i << '\n';
	std::cout << stream.tellp() << ' ' << stream.tellg() << '\n';
	stream.seekg(700);
	int number = 0;
	stream >> number;
	std::cout << number << " at " << stream.tellg() << " peek " << stream.peek() << '\n';
	stream.putback('0').unget();
	std::cout << stream.rdstate() << '\n';
	stream.clear();
	stream.seekp(-7, std::ios::end);
	stream << "LAST";
	stream.seekg(-7, std::ios::end);
	std::string line;
	std::getline(stream, line);
	std::cout << line << " at " << stream.tellg() << '\n';
	stream.seekp(200000);
	stream << "far";
	stream.seekg(0, std::ios::end);
	std::cout << stream.tellg() << '\n';
	stream.seekg(139990);
	char text[40];
	stream.read(text, 30);
	std::cout << stream.gcount() << ' ' << stream.good() << '\n';
	stream.seekg(-10, std::ios::beg);
	std::cout << "before the start " << stream.rdstate() << '\n';
	stream.clear();
	stream.ignore(1 << 30);
	std::cout << stream.eof() << ' ' << stream.gcount() << '\n';
	stream.close();
	std::ofstream big(file, std::ios::binary);
	std::string block(1 << 20, 'b');
	for (int i = 0; i < 5; i++)
		big.write(block.data(), block.size() - i);
	std::cout << big.tellp() << ' ' << fs::file_size(file) << '\n';
	big.close();
	std::cout << fs::file_size(file) << '\n';
	char own[100];
	std::ofstream small;
	small.rdbuf()->pubsetbuf(own, sizeof own);
	small.open(file);
	small << std::string(150, 's');
	std::cout << fs::file_size(file) << '\n';
	small << std::unitbuf << "unit";
	std::cout << fs::file_size(file) << '\n';
}

static void wide()
{
	for (const char *name : { "C.UTF-8", "C" }) {
		std::wofstream out;
		out.imbue(std::locale(name));
		out.open(file);
		out << L"wide " << 42 << L' ' << (*name && name[1] ? L"\u00e9\u20ac" : L"plain") << std::endl;
		std::cout << name << ": state " << out.rdstate() << '\n';
		out.clear();
		out.close();
		std::cout << fs::file_size(file) << " bytes\n";
		std::wifstream in;
		in.imbue(std::locale(name));
		in.open(file);
		std::wstring word;
		while (in >> word)
			for (wchar_t c : word)
				std::cout << ' ' << int(c);
		std::cout << "; " << in.rdstate() << '\n';
	}
}

static void file_system()
{
	std::error_code code;
	put(file, std::string(100000, 'f'));
	std::cout << fs::copy_file(file, file + ".copy") << fs::copy_file(file, file + ".copy", code) << ' ' << code.value() << '\n';
	put(file, "newer");
	std::cout << fs::copy_file(file, file + ".copy", fs::copy_options::overwrite_existing) << ' ' << get(file + ".copy") << '\n';
	std::cout << fs::copy_file(file, file + ".copy", fs::copy_options::skip_existing) << '\n';
	fs::resize_file(file + ".copy", 9);
	std::cout << fs::file_size(file + ".copy") << ' ' << (get(file + ".copy") == std::string("newer\0\0\0\0", 9)) << '\n';
	fs::resize_file(file + ".copy", 3);
	std::cout << get(file + ".copy") << '\n';
	auto then = fs::file_time_type::clock::now() - std::chrono::hours(30);
	fs::last_write_time(file, then);
	std::cout << (fs::last_write_time(file) == then) << (fs::last_write_time(file) < fs::last_write_time(file + ".copy")) << '\n';
	put(file, "written");
	std::cout << (fs::last_write_time(file) > then) << '\n';
	fs::create_directories("folder/inside");
	for (int i = 0; i < 20; i++)
		put("folder/inside/" + std::to_string(i), std::string(i * 100, 'x'));
	fs::rename("folder/inside/7", "folder/seven");
	fs::rename("folder/seven", "folder/inside/8");
	fs::create_symlink("inside/3", "folder/link");
	fs::create_hard_link("folder/inside/4", "folder/four");
	std::set<std::string> found;
	for (auto &entry : fs::recursive_directory_iterator("folder"))
		found.insert(entry.path().string() + ' ' + std::to_string(entry.is_regular_file() ? entry.file_size() : 0) + ' ' +
			     std::to_string(entry.is_directory() ? 0 : entry.hard_link_count()));
	for (auto &line : found)
		std::cout << line << '\n';
	fs::copy("folder", "folder.copy", fs::copy_options::recursive | fs::copy_options::copy_symlinks);
	std::cout << get("folder.copy/inside/19").size() << get("folder.copy/link").size() << '\n';
	std::cout << fs::equivalent("folder/four", "folder/inside/4") << fs::exists("folder/inside/7") << fs::is_empty("folder/inside/0") << '\n';
	auto space = fs::space(".");
	std::cout << (space.capacity > 0) << (space.available <= space.free) << '\n';
	std::cout << fs::remove_all("folder") << '\n';
	fs::permissions(file, fs::perms::owner_read | fs::perms::owner_write);
	std::cout << int(fs::status(file).permissions()) << ' ' << fs::canonical(file).filename() << '\n';
}

static void standard_streams()
{
	std::ofstream target(file + ".rdbuf");
	std::streambuf *before = std::cout.rdbuf(target.rdbuf());
	std::cout << "through another buffer\n";
	std::cout.rdbuf(before);
	target.close();
	std::cout << get(file + ".rdbuf") << std::flush;
	std::fflush(stdout);
	int saved = dup(1);
	int fd = open((file + ".dup2").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
	dup2(fd, 1);
	close(fd);
	std::cout << "cout " << 1 << std::endl;
	std::printf("printf\n");
	std::cout << "in step\n";
	std::wcout << L"wcout too" << std::endl;
	std::cout.flush();
	std::fflush(stdout);
	std::cerr << "stderr" << std::endl;
	dup2(saved, 1);
	std::cout << get(file + ".dup2");
	put(file + ".in", "1 2 3\nfour\n");
	fd = open((file + ".in").c_str(), O_RDONLY);
	dup2(fd, 0);
	close(fd);
	int a = 0, b = 0, c = 0;
	std::cin >> a >> b;
	std::cout << std::scanf("%d", &c) << ' ' << a << b << c << '\n';
	std::string word;
	std::cin >> word;
	std::cout << word << ' ' << std::cin.get() << std::cin.get() << std::cin.eof() << '\n';
}

int main(int argc, char **argv)
{
	if (argc > 2)
		std::ios::sync_with_stdio(false);
	file = argv[1];
	open_modes();
	positions();
	wide();
	file_system();
	standard_streams();
	return 0;
}
